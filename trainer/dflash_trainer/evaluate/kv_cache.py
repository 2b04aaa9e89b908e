"""KV cache of one sequence in tensors of fixed size, so that every decoding step has the same shapes."""

# Tensor letters: see dflash_trainer/__init__.py.

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional


@dataclass(frozen=True)
class KVCache:
    """Keys and values by position; masks hide stale entries past the end of the sequence."""

    k_1GPE: Tensor
    v_1GPE: Tensor

    @classmethod
    def empty(cls, kv_heads: int, capacity: int, head_dim: int, like: Tensor) -> KVCache:
        """Allocate a cache of `capacity` positions with the device and dtype of `like`."""
        k, v = (like.new_zeros(1, kv_heads, capacity, head_dim) for _ in range(2))
        return cls(k, v)

    def write(self, positions_T: Tensor, k_1GTE: Tensor, v_1GTE: Tensor) -> None:
        """Store the keys and values of T tokens at their positions."""
        self.k_1GPE.index_copy_(2, positions_T, k_1GTE)
        self.v_1GPE.index_copy_(2, positions_T, v_1GTE)

    def attend(self, q_1HTE: Tensor, visible_TP: Tensor) -> Tensor:
        """Return grouped-query attention over the visible positions, [1, H, T, E].

        Heads that share keys become rows of one query, which avoids a copy of the keys for each head.
        """
        _, heads, tokens, head_dim = q_1HTE.shape
        kv_heads = self.k_1GPE.shape[1]
        group = heads // kv_heads
        q = q_1HTE.reshape(1, kv_heads, group * tokens, head_dim)
        mask = visible_TP.repeat(group, 1)
        mixed = functional.scaled_dot_product_attention(q, self.k_1GPE, self.v_1GPE, attn_mask=mask)
        return mixed.reshape(1, heads, tokens, head_dim)


def consecutive_positions(start: Tensor, tokens: int) -> Tensor:
    """Return start .. start+tokens-1, [T]; `start` is a tensor so that a captured graph reads its current value."""
    return start + torch.arange(tokens, device=start.device)
