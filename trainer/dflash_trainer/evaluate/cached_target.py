"""All layers of the target with a KV cache for one sequence: token ids in, logits and captured states out."""

# Tensor letters: see dflash_trainer/__init__.py.

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from dflash_trainer.evaluate.kv_cache import KVCache, consecutive_positions
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
class DeltaNetCache:
    """State of a GatedDeltaNet layer: last convolution inputs, recurrent state, and a block that is not committed."""

    conv_1TC: Tensor
    state_1HEF: Tensor
    pending: tuple[RuleInputs, Tensor] | None = None

    def reset(self) -> None:
        """Clear the state for a new sequence."""
        self.conv_1TC.zero_()
        self.state_1HEF.zero_()

    @classmethod
    def empty(cls, sizes: DeltaNetSizes, weights: DeltaNetWeights) -> DeltaNetCache:
        """Allocate the state of one layer; the recurrent state is fp32."""
        channels, _, taps = weights.conv.shape
        conv = weights.conv.new_zeros(1, taps - 1, channels)
        state = torch.zeros(1, sizes.value_heads, sizes.key_dim, sizes.value_dim, device=conv.device)
        return cls(conv, state)


class CachedTarget:
    """One sequence through all layers of a target loaded with `all_layers=True`. Used by one thread."""

    def __init__(self, target: Target, capacity: int) -> None:
        assert len(target.weights.layers) == target.shape.num_layers, "decoding needs the whole target"
        self.target = target
        self.plan = target.plan
        self._position_P = torch.arange(capacity, device=target.device)
        self._rope_PR = rope_tables(self.plan, self._position_P)
        self._caches = [self._empty_cache(first, capacity) for first, _ in target.weights.layers]

    def reset(self) -> None:
        """Start a new sequence. Old keys and values stay, hidden by masks."""
        for cache in self._caches:
            if isinstance(cache, DeltaNetCache):
                cache.reset()

    @torch.no_grad()
    def forward(self, ids_1T: Tensor, start: Tensor, *, commit: bool, compiled: bool = False) -> tuple[Tensor, Tensor]:
        """Run T tokens at positions start .. start+T-1.

        Args:
            ids_1T: token ids.
            start: position of the first token.
            commit: append all T tokens to the sequence; otherwise call `commit` with the accepted count before the
                next forward.
            compiled: use compiled layers; only for shapes that repeat.

        Returns:
            Logits [T, V] and captured states [1, T, X] in the target's dtype.
        """
        positions = consecutive_positions(start, ids_1T.shape[1])
        cos, sin = (table.index_select(0, positions) for table in self._rope_PR)
        visible_TP = self._position_P <= positions[:, None]
        weights, sizes, captured = self.target.weights, self.plan.sizes, self.target.captured
        x = functional.embedding(ids_1T, weights.embed)
        states = []
        for number, (first, second) in enumerate(weights.layers):
            cache = self._caches[number]
            if isinstance(first, DeltaNetWeights):
                assert isinstance(cache, DeltaNetCache)
                x = self._delta_net(x, first, second, cache, commit=commit, compiled=compiled)
            else:
                assert isinstance(cache, KVCache)
                q, k, v, gate = self._function(project, compiled)(x, first, cos, sin, sizes)
                cache.write(positions, k, v)
                mixed = cache.attend(q, visible_TP)
                x = self._function(finish, compiled)(x, mixed, gate, first, second, sizes)
            if number in captured:
                states.append(x)
        logits = functional.linear(rms_norm(x, weights.final_norm, sizes)[0], weights.head)
        return logits, torch.cat(states, dim=-1)

    @torch.no_grad()
    def commit(self, count: Tensor) -> None:
        """Append the first `count` tokens of the last forward to the sequence and discard the others."""
        for cache in self._caches:
            if isinstance(cache, DeltaNetCache) and cache.pending is not None:
                self._commit_delta_net(cache, count)

    def _delta_net(
        self,
        x: Tensor,
        first: DeltaNetWeights,
        second: MlpWeights,
        cache: DeltaNetCache,
        *,
        commit: bool,
        compiled: bool,
    ) -> Tensor:
        plan, rule = self.plan, self.target.forward.rule
        assert plan.delta_net is not None
        rule_inputs, z, padded = self._function(delta_net_inputs, compiled)(
            x, first, plan.delta_net, plan.sizes, cache.conv_1TC, all_inputs=True
        )
        inputs = RuleInputs(*rule_inputs)
        mixed, state = rule(inputs, cache.state_1HEF, commit)
        if commit:
            assert state is not None
            cache.state_1HEF.copy_(state)
            cache.conv_1TC.copy_(padded[:, -cache.conv_1TC.shape[1] :])
        cache.pending = None if commit else (inputs, padded)
        return self._function(delta_net_outputs, compiled)(x, mixed, z, first, second, plan.sizes)

    def _commit_delta_net(self, cache: DeltaNetCache, count: Tensor) -> None:
        """Run the rule again with decay and beta of rejected tokens at zero, so that they leave the state unchanged."""
        assert cache.pending is not None
        inputs, padded = cache.pending
        accepted_1T1 = (torch.arange(inputs.beta.shape[1], device=count.device) < count)[None, :, None]
        masked = inputs._replace(decay=inputs.decay * accepted_1T1, beta=inputs.beta * accepted_1T1)
        _, state = self.target.forward.rule(masked, cache.state_1HEF, True)
        assert state is not None
        cache.state_1HEF.copy_(state)
        last = consecutive_positions(count, cache.conv_1TC.shape[1])
        cache.conv_1TC.copy_(padded.index_select(1, last))

    def _function(self, function: Callable[..., Any], compiled: bool) -> Callable[..., Any]:
        return self.target.forward.compiler.compiled(function) if compiled else function

    def _empty_cache(self, first: AttentionWeights | DeltaNetWeights, capacity: int) -> KVCache | DeltaNetCache:
        if isinstance(first, DeltaNetWeights):
            assert self.plan.delta_net is not None
            return DeltaNetCache.empty(self.plan.delta_net, first)
        shape = self.plan.shape
        return KVCache.empty(shape.num_kv_heads, capacity, shape.head_dim, like=first.k)
