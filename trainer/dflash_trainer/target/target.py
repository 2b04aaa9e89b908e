"""The frozen target on one device."""

# Tensor letters: see dflash_trainer/__init__.py.

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from dflash_trainer.config.target_shape import TargetShape
from dflash_trainer.target.content_hash import content_hash
from dflash_trainer.target.forward import CaptureForward
from dflash_trainer.target.graphs import GraphedForward
from dflash_trainer.target.plan import TargetPlan
from dflash_trainer.target.weights import TargetWeights


class Target:
    """Computes hidden states of token ids. Created by `load_target`, used by one thread."""

    def __init__(
        self,
        forward: CaptureForward,
        device: torch.device,
        dtype: torch.dtype,
        load_tokenizer: Callable[[], Any],
        *,
        graphed: bool,
    ) -> None:
        self.forward = forward
        self.device = device
        self.dtype = dtype
        self._load_tokenizer = load_tokenizer
        width = len(forward.captured) * forward.plan.shape.hidden_size
        self.width = width
        self.graphs = GraphedForward(forward, width, dtype) if graphed else None

    @property
    def plan(self) -> TargetPlan:
        """Structure of the target."""
        return self.forward.plan

    @property
    def weights(self) -> TargetWeights:
        """Loaded weights."""
        return self.forward.weights

    @property
    def shape(self) -> TargetShape:
        """Sizes of the target's text model."""
        return self.plan.shape

    @property
    def captured(self) -> tuple[int, ...]:
        """0-based ids of the captured layers."""
        return self.forward.captured

    @property
    def embed_weight(self) -> Tensor:
        """The embedding, [V, D], on the target's device."""
        return self.weights.embed

    @property
    def head_weight(self) -> Tensor:
        """The output head, [V, D]; the embedding itself in a target with tied weights."""
        return self.weights.head

    @cached_property
    def content_hash(self) -> str:
        """Hash of the loaded weights, independent of their file; computed on first use."""
        return content_hash(self.plan, self.weights)

    @cached_property
    def tokenizer(self) -> Any:
        """The target's tokenizer, loaded on first use. Raises InputError when there is none."""
        return self._load_tokenizer()

    def warm_up(self, rows: int, length: int) -> None:
        """Compile and autotune the shape [rows, length], and capture its CUDA graph if enabled."""
        if self.graphs is not None:
            self.graphs.capture(rows, length, self.device)
        ids = torch.zeros(rows, length, dtype=torch.int64, device=self.device)
        both = self.capture(ids), self.capture(ids)  # a worker holds two: one is copied while the next is computed
        del both

    @torch.no_grad()
    def capture(self, input_ids_BL: Tensor, lengths_B: Tensor | None = None) -> Tensor:
        """Return the hidden states of the captured layers, concatenated.

        Args:
            input_ids_BL: padded on the right; on the CPU or the target's device.
            lengths_B: tokens per row without padding. Not used: every layer is causal, so padding on the right
                changes nothing before it.

        Returns:
            A new tensor [B, L, X] in the target's dtype; states of padding are meaningless.
        """
        input_ids_BL = input_ids_BL.to(self.device, non_blocking=True)
        states = torch.empty(*input_ids_BL.shape, self.width, dtype=self.dtype, device=self.device)
        if self.graphs is not None and self.graphs.covers(input_ids_BL):
            self.graphs.replay(input_ids_BL, states)
        else:
            self.forward(input_ids_BL, states)
        return states
