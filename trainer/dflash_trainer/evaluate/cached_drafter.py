"""The drafter with a KV cache for one sequence: hidden states of the target in, a drafted block out."""

# Tensor letters: see dflash_trainer/__init__.py.

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from dflash_trainer.evaluate.kv_cache import KVCache, consecutive_positions
from dflash_trainer.loss.head import HeadProducts
from dflash_trainer.model.layer import DecoderLayer, LayerWeights, keys_and_values, output_and_mlp, queries, rms_norm
from dflash_trainer.model.rope import rope_tables
from dflash_trainer.pipeline.warmup import DrafterSite


class CachedDrafter:
    """Greedy drafter of one block at a time with a KV cache, as in a server. Used by one thread."""

    def __init__(self, site: DrafterSite, head: HeadProducts, capacity: int) -> None:
        self.drafter = copy.copy(site.drafter)
        self.drafter.compiled = False
        self.shape = shape = site.drafter.shape
        self._embed = site.embed
        self._head = head
        self._position_P = torch.arange(capacity, device=site.device)
        self._rope_1PE = rope_tables(self._position_P[None], head_dim=shape.head_dim, theta=shape.rope_theta)
        self._mask_tokens = torch.full((shape.block_size - 1,), shape.mask_token_id, device=site.device)
        self._weights = [_weights(layer) for layer in self.drafter.layers]
        self._caches = [KVCache.empty(shape.num_kv_heads, capacity, shape.head_dim, like=w.k) for w in self._weights]

    @torch.no_grad()
    def append(self, states_1TX: Tensor, start: Tensor) -> None:
        """Add the target's hidden states of positions start .. start+T-1 to the KV cache."""
        positions = consecutive_positions(start, states_1TX.shape[1])
        cos, sin = self._rope(positions)
        context = self.drafter.context(states_1TX)
        for w, cache in zip(self._weights, self._caches, strict=True):
            k, v = keys_and_values(context, w, cos, sin, **self._sizes)
            cache.write(positions, k.transpose(1, 2), v.transpose(1, 2))

    @torch.no_grad()
    def draft(self, token_1: Tensor, start: Tensor, *, compiled: bool = False) -> Tensor:
        """Return `token_1` and W drafted tokens, [K], for positions start .. start+K-1.

        The states of all positions before `start` must have been appended. The keys and values of the block stay in
        the cache until the next append overwrites them.
        """
        positions = consecutive_positions(start, self.shape.block_size)
        cos, sin = self._rope(positions)
        visible = {window: self._visible(positions, window) for window in self._windows}
        x = functional.embedding(torch.cat((token_1, self._mask_tokens)), self._embed)[None]
        for number, (w, cache) in enumerate(zip(self._weights, self._caches, strict=True)):
            q, k, v = self._function(_project, compiled)(x, w, cos, sin, **self._sizes)
            cache.write(positions, k, v)
            mixed = cache.attend(q, visible[self.shape.window_of(number)])
            x = self._function(_finish, compiled)(x, mixed, w, self.shape.rms_norm_eps)
        hidden = rms_norm(x[0, 1:], self.drafter.norm.weight, self.shape.rms_norm_eps)
        return torch.cat((token_1, self._head.logits(hidden).argmax(-1)))

    def _function(self, function: Callable[..., Any], compiled: bool) -> Callable[..., Any]:
        return self.drafter.compiler.compiled(function) if compiled else function

    @property
    def _sizes(self) -> dict[str, Any]:
        return {"head_dim": self.shape.head_dim, "eps": self.shape.rms_norm_eps}

    @property
    def _windows(self) -> set[int]:
        return {self.shape.window_of(number) for number in range(self.shape.num_layers)}

    def _rope(self, positions_T: Tensor) -> tuple[Tensor, Tensor]:
        cos, sin = (table.index_select(1, positions_T) for table in self._rope_1PE)
        return cos, sin

    def _visible(self, positions_K: Tensor, window: int) -> Tensor:
        """Return the mask [K, P]: full layers see the whole block, sliding ones are causal over `window` positions."""
        if not window:
            return (self._position_P <= positions_K[-1]).expand(len(positions_K), -1)
        query = positions_K[:, None]
        return (self._position_P <= query) & (query - self._position_P < window)


def _project(
    x: Tensor, w: LayerWeights, cos: Tensor, sin: Tensor, *, head_dim: int, eps: float
) -> tuple[Tensor, Tensor, Tensor]:
    """Return queries [1, H, K, E], keys and values [1, G, K, E] of a block."""
    normed = rms_norm(x, w.input_norm, eps)
    q = queries(normed, w, cos, sin, head_dim=head_dim, eps=eps)
    k, v = keys_and_values(normed, w, cos, sin, head_dim=head_dim, eps=eps)
    return q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)


def _finish(x: Tensor, mixed: Tensor, w: LayerWeights, eps: float) -> Tensor:
    return output_and_mlp(x, mixed.transpose(1, 2), w, eps)


def _weights(layer: torch.nn.Module) -> LayerWeights:
    assert isinstance(layer, DecoderLayer)
    return layer.weights()
