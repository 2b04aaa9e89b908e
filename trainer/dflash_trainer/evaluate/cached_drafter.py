"""The drafter with the memory of one sequence: states of the target in, a drafted block out."""

# Tensor letters: see dflash_trainer/__init__.py.

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from dflash_trainer.evaluate.memory import AttentionMemory, block_of_positions
from dflash_trainer.loss.head import HeadProducts
from dflash_trainer.model.layer import DecoderLayer, LayerWeights, keys_and_values, output_and_mlp, queries, rms_norm
from dflash_trainer.model.rope import rope_tables
from dflash_trainer.pipeline.warmup import DrafterSite


class CachedDrafter:
    """Drafts one block at a time, greedily. The context's keys and values are kept, as servers keep them."""

    def __init__(self, site: DrafterSite, head: HeadProducts, capacity: int) -> None:
        self.drafter = copy.copy(site.drafter)
        self.drafter.compiled = False
        self.shape = shape = site.drafter.shape
        self._embed = site.embed
        self._head = head
        self._key_C = torch.arange(capacity, device=site.device)
        self._rope_1CE = rope_tables(self._key_C[None], head_dim=shape.head_dim, theta=shape.rope_theta)
        self._masks = torch.full((shape.block_size - 1,), shape.mask_token_id, device=site.device)
        self._weights = [_weights(layer) for layer in self.drafter.layers]
        self._memories = [
            AttentionMemory.empty(shape.num_kv_heads, capacity, shape.head_dim, like=w.k) for w in self._weights
        ]

    @torch.no_grad()
    def append(self, states_1TX: Tensor, start: Tensor) -> None:
        """Remember the target's states of positions start .. start+T-1."""
        positions = block_of_positions(start, states_1TX.shape[1])
        cos, sin = self._rope(positions)
        context = self.drafter.context(states_1TX)
        for w, memory in zip(self._weights, self._memories, strict=True):
            k, v = keys_and_values(context, w, cos, sin, **self._sizes)
            memory.write(positions, k.transpose(1, 2), v.transpose(1, 2))

    @torch.no_grad()
    def draft(self, token_1: Tensor, start: Tensor, *, compiled: bool = False) -> Tensor:
        """[token, B-1 drafted tokens] for positions start .. start+B-1, [K].

        The states of all positions before `start` must have been appended. The block's own keys lie in the memory
        until the next append overwrites them.
        """
        positions = block_of_positions(start, self.shape.block_size)
        cos, sin = self._rope(positions)
        seen = {window: self._visible(positions, window) for window in self._windows}
        x = functional.embedding(torch.cat((token_1, self._masks)), self._embed)[None]
        for number, (w, memory) in enumerate(zip(self._weights, self._memories, strict=True)):
            q, k, v = self._function(_project, compiled)(x, w, cos, sin, **self._sizes)
            memory.write(positions, k, v)
            mixed = memory.attend(q, seen[self.shape.window_of(number)])
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
        cos, sin = (table.index_select(1, positions_T) for table in self._rope_1CE)
        return cos, sin

    def _visible(self, positions_K: Tensor, window: int) -> Tensor:
        """[K, P]: a full layer sees its whole block, a sliding one is causal and sees `window` positions."""
        if not window:
            return (self._key_C <= positions_K[-1]).expand(len(positions_K), -1)
        query = positions_K[:, None]
        return (self._key_C <= query) & (query - self._key_C < window)


def _project(
    x: Tensor, w: LayerWeights, cos: Tensor, sin: Tensor, *, head_dim: int, eps: float
) -> tuple[Tensor, Tensor, Tensor]:
    """Queries, keys and values of a block, [1, heads, B, E]."""
    normed = rms_norm(x, w.input_norm, eps)
    q = queries(normed, w, cos, sin, head_dim=head_dim, eps=eps)
    k, v = keys_and_values(normed, w, cos, sin, head_dim=head_dim, eps=eps)
    return q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)


def _finish(x: Tensor, mixed: Tensor, w: LayerWeights, eps: float) -> Tensor:
    return output_and_mlp(x, mixed.transpose(1, 2), w, eps)


def _weights(layer: torch.nn.Module) -> LayerWeights:
    assert isinstance(layer, DecoderLayer)
    return layer.weights()
