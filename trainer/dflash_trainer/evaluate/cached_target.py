"""The whole target with the memory of one sequence: token ids in, logits and captured states out."""

# Tensor letters: see dflash_trainer/__init__.py.

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from dflash_trainer.evaluate.memory import AttentionMemory, block_of_positions
from dflash_trainer.target import Target
from dflash_trainer.target.delta_net import (
    DeltaNetSizes,
    DeltaNetWeights,
    RuleInputs,
    delta_net_inputs,
    delta_net_outputs,
)
from dflash_trainer.target.layers import AttentionWeights, MlpWeights, finish, project, rms_norm
from dflash_trainer.target.plan import rope_tables


@dataclass
class DeltaMemory:
    """What a GatedDeltaNet layer remembers, and the block that waits for `keep` to say how much of it counts."""

    conv_1KC: Tensor
    memory_1HEF: Tensor
    waiting: tuple[RuleInputs, Tensor] | None = None

    def reset(self) -> None:
        self.conv_1KC.zero_()
        self.memory_1HEF.zero_()

    @classmethod
    def empty(cls, sizes: DeltaNetSizes, weights: DeltaNetWeights) -> DeltaMemory:
        channels, _, taps = weights.conv.shape
        conv = weights.conv.new_zeros(1, taps - 1, channels)
        memory = torch.zeros(1, sizes.value_heads, sizes.key_dim, sizes.value_dim, device=conv.device)
        return cls(conv, memory)


class CachedTarget:
    """One sequence through all layers of a target that was loaded whole. Used by one thread."""

    def __init__(self, target: Target, capacity: int) -> None:
        assert len(target.weights.layers) == target.shape.num_layers, "decoding needs the whole target"
        self.target = target
        self.plan = target.plan
        self._key_C = torch.arange(capacity, device=target.device)
        self._rope_CR = rope_tables(self.plan, self._key_C)
        self._memories = [self._memory_for(first, capacity) for first, _ in target.weights.layers]

    def reset(self) -> None:
        """Forget the sequence. Keys and values stay: masks hide them."""
        for memory in self._memories:
            if isinstance(memory, DeltaMemory):
                memory.reset()

    @torch.no_grad()
    def forward(self, ids_1T: Tensor, start: Tensor, *, keep: bool, compiled: bool = False) -> tuple[Tensor, Tensor]:
        """Run T tokens at positions start .. start+T-1.

        Args:
            keep: all T tokens belong to the sequence; otherwise `keep` must say how many before the next call.
            compiled: use compiled layers; only for shapes that come again and again.
        Returns:
            logits [T, V] and captured states [1, T, X], in the target's type.
        """
        positions = block_of_positions(start, ids_1T.shape[1])
        cos, sin = (table.index_select(0, positions) for table in self._rope_CR)
        visible_TP = self._key_C <= positions[:, None]
        weights, sizes, captured = self.target.weights, self.plan.sizes, self.target.captured
        x = functional.embedding(ids_1T, weights.embed)
        states = []
        for number, (first, second) in enumerate(weights.layers):
            memory = self._memories[number]
            if isinstance(first, DeltaNetWeights):
                assert isinstance(memory, DeltaMemory)
                x = self._delta_net(x, first, second, memory, keep=keep, compiled=compiled)
            else:
                assert isinstance(memory, AttentionMemory)
                q, k, v, gate = self._function(project, compiled)(x, first, cos, sin, sizes)
                memory.write(positions, k, v)
                mixed = memory.attend(q, visible_TP)
                x = self._function(finish, compiled)(x, mixed, gate, first, second, sizes)
            if number in captured:
                states.append(x)
        logits = functional.linear(rms_norm(x, weights.final_norm, sizes)[0], weights.head)
        return logits, torch.cat(states, dim=-1)

    @torch.no_grad()
    def keep(self, count: Tensor) -> None:
        """The first `count` tokens of the last forward belong to the sequence, the rest never happened."""
        for memory in self._memories:
            if isinstance(memory, DeltaMemory) and memory.waiting is not None:
                self._keep_delta(memory, count)

    def _delta_net(
        self,
        x: Tensor,
        first: DeltaNetWeights,
        second: MlpWeights,
        memory: DeltaMemory,
        *,
        keep: bool,
        compiled: bool,
    ) -> Tensor:
        plan, rule = self.plan, self.target.forward.rule
        assert plan.delta_net is not None
        found, z, padded = self._function(delta_net_inputs, compiled)(
            x, first, plan.delta_net, plan.sizes, memory.conv_1KC, all_inputs=True
        )
        inputs = RuleInputs(*found)
        mixed, after = rule(inputs, memory.memory_1HEF, keep)
        if keep:
            assert after is not None
            memory.memory_1HEF.copy_(after)
            memory.conv_1KC.copy_(padded[:, -memory.conv_1KC.shape[1] :])
        memory.waiting = None if keep else (inputs, padded)
        return self._function(delta_net_outputs, compiled)(x, mixed, z, first, second, plan.sizes)

    def _keep_delta(self, memory: DeltaMemory, count: Tensor) -> None:
        """Run the rule once more; tokens that do not count neither fade the memory nor write to it."""
        assert memory.waiting is not None
        inputs, padded = memory.waiting
        counts_1T1 = (torch.arange(inputs.beta.shape[1], device=count.device) < count)[None, :, None]
        quiet = inputs._replace(decay=inputs.decay * counts_1T1, beta=inputs.beta * counts_1T1)
        _, after = self.target.forward.rule(quiet, memory.memory_1HEF, True)
        assert after is not None
        memory.memory_1HEF.copy_(after)
        last = block_of_positions(count, memory.conv_1KC.shape[1])
        memory.conv_1KC.copy_(padded.index_select(1, last))

    def _function(self, function: Callable[..., Any], compiled: bool) -> Callable[..., Any]:
        return self.target.forward.compiler.compiled(function) if compiled else function

    def _memory_for(self, first: AttentionWeights | DeltaNetWeights, capacity: int) -> AttentionMemory | DeltaMemory:
        if isinstance(first, DeltaNetWeights):
            assert self.plan.delta_net is not None
            return DeltaMemory.empty(self.plan.delta_net, first)
        shape = self.plan.shape
        return AttentionMemory.empty(shape.num_kv_heads, capacity, shape.head_dim, like=first.k)
