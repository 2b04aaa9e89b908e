"""The frozen target on one device."""

# Tensor letters: see dflash_trainer.model.

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from dflash_trainer.config.target_shape import TargetShape
from dflash_trainer.target.content_hash import content_of
from dflash_trainer.target.forward import CaptureForward
from dflash_trainer.target.graphs import GraphedForward
from dflash_trainer.target.plan import TargetPlan
from dflash_trainer.target.weights import TargetWeights


class Target:
    """Gives hidden states of token ids. Made by `load_target`, used by one thread."""

    def __init__(
        self,
        forward: CaptureForward,
        device: torch.device,
        dtype: torch.dtype,
        make_tokenizer: Callable[[], Any],
        *,
        graphed: bool,
    ) -> None:
        self.forward = forward
        self.device = device
        self.dtype = dtype
        self._make_tokenizer = make_tokenizer
        width = len(forward.captured) * forward.plan.shape.hidden_size
        self.width = width
        self.graphs = GraphedForward(forward, width, dtype) if graphed else None

    @property
    def plan(self) -> TargetPlan:
        return self.forward.plan

    @property
    def weights(self) -> TargetWeights:
        return self.forward.weights

    @property
    def shape(self) -> TargetShape:
        return self.plan.shape

    @property
    def captured(self) -> tuple[int, ...]:
        """0-based ids of the captured layers."""
        return self.forward.captured

    @property
    def embed_weight(self) -> Tensor:
        """The embedding, [vocab, hidden], on the target's device."""
        return self.weights.embed

    @property
    def head_weight(self) -> Tensor:
        """The output head, [vocab, hidden]; the embedding itself when the target ties them."""
        return self.weights.head

    @cached_property
    def content(self) -> str:
        """What the weights are, whatever file they came from; computed at first use."""
        return content_of(self.plan, self.weights)

    @cached_property
    def tokenizer(self) -> Any:
        """The target's tokenizer, read at first use. Raises InputError when there is none."""
        return self._make_tokenizer()

    def warm(self, rows: int, length: int) -> None:
        """Compile, autotune and, with graphs, record the shape [rows, length]."""
        if self.graphs is not None:
            self.graphs.record(rows, length, self.device)
        ids = torch.zeros(rows, length, dtype=torch.int64, device=self.device)
        both = self.capture(ids), self.capture(ids)  # a worker makes the next states while the last are copied away
        del both

    @torch.no_grad()
    def capture(self, input_ids_BL: Tensor, lengths_B: Tensor | None = None) -> Tensor:
        """Hidden states of the captured layers, side by side.

        Args:
            input_ids_BL: padded on the right; on the CPU or the target's device.
            lengths_B: unused tokens start here; since every layer is causal they change nothing before them, so
                this is only for the caller's books.
        Returns:
            [B, L, X] in the target's type, a new tensor; states of padding are meaningless.
        """
        input_ids_BL = input_ids_BL.to(self.device, non_blocking=True)
        states = torch.empty(*input_ids_BL.shape, self.width, dtype=self.dtype, device=self.device)
        if self.graphs is not None and self.graphs.covers(input_ids_BL):
            self.graphs.replay(input_ids_BL, states)
        else:
            self.forward(input_ids_BL, states)
        return states
