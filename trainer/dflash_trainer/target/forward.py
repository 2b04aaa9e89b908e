"""Forward pass of the target over a padded batch, up to the last captured layer."""

# Tensor letters: see dflash_trainer/__init__.py.

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from dflash_trainer.compilation import WorkerCompiler
from dflash_trainer.target.delta_net import DeltaNetWeights, DeltaRule, RuleInputs, delta_net_inputs, delta_net_outputs
from dflash_trainer.target.layers import attention_layer
from dflash_trainer.target.plan import TargetPlan, rope_tables
from dflash_trainer.target.weights import TargetWeights


class CaptureForward:
    """The target up to its last captured layer, without the head; one per worker."""

    def __init__(
        self, plan: TargetPlan, weights: TargetWeights, captured: tuple[int, ...], rule: DeltaRule, *, compiled: bool
    ) -> None:
        self.plan = plan
        self.weights = weights
        self.captured = captured
        self.rule = rule
        self.compiled = compiled
        self.compiler = WorkerCompiler()
        self._rope: dict[int, tuple[Tensor, Tensor]] = {}

    @torch.no_grad()
    def __call__(self, input_ids_BL: Tensor, into_BLX: Tensor) -> None:
        """Write the outputs of the captured layers, concatenated, to `into_BLX`."""
        cos, sin = self._rope_of(input_ids_BL.shape[1])
        x = functional.embedding(input_ids_BL, self.weights.embed)
        width = self.plan.shape.hidden_size
        for number in range(self.captured[-1] + 1):
            x = self._layer(x, number, cos, sin)
            if number in self.captured:
                start = self.captured.index(number) * width
                into_BLX[:, :, start : start + width].copy_(x)

    def _rope_of(self, length: int) -> tuple[Tensor, Tensor]:
        """Return RoPE tables [L, R] of positions 0 .. L-1, cached: a CUDA graph must not copy from the host."""
        if length not in self._rope:
            self._rope[length] = rope_tables(self.plan, torch.arange(length, device=self.weights.embed.device))
        return self._rope[length]

    def _layer(self, x: Tensor, number: int, cos: Tensor, sin: Tensor) -> Tensor:
        first, second = self.weights.layers[number]
        sizes = self.plan.sizes
        if not isinstance(first, DeltaNetWeights):
            return self._function(attention_layer)(x, first, second, cos, sin, sizes)
        assert self.plan.delta_net is not None
        inputs, z, _ = self._function(delta_net_inputs)(x, first, self.plan.delta_net, sizes)
        output, _ = self.rule(RuleInputs(*inputs), None, False)
        return self._function(delta_net_outputs)(x, output, z, first, second, sizes)

    def _function(self, function: Callable[..., Any]) -> Callable[..., Any]:
        return self.compiler.compiled(function) if self.compiled else function
