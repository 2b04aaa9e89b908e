"""Keys and values of one sequence in tensors of fixed size, so that every decoding step has the same shapes."""

# Tensor letters: see dflash_trainer/__init__.py.

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional


@dataclass(frozen=True)
class AttentionMemory:
    """Entry p is the token at position p; entries past the sequence's end are leftovers that masks hide."""

    k_1VCE: Tensor
    v_1VCE: Tensor

    @classmethod
    def empty(cls, kv_heads: int, capacity: int, head_dim: int, like: Tensor) -> AttentionMemory:
        """Room for `capacity` tokens, on the device and in the type of `like`."""
        k, v = (like.new_zeros(1, kv_heads, capacity, head_dim) for _ in range(2))
        return cls(k, v)

    def write(self, positions_T: Tensor, k_1VTE: Tensor, v_1VTE: Tensor) -> None:
        """Put the keys and values of T tokens in place."""
        self.k_1VCE.index_copy_(2, positions_T, k_1VTE)
        self.v_1VCE.index_copy_(2, positions_T, v_1VTE)

    def attend(self, q_1GTE: Tensor, visible_TP: Tensor) -> Tensor:
        """Grouped-query attention over what is visible, [1, G, T, E].

        Heads that share keys become rows of one query, so that no copy of the keys is made for them.
        """
        _, heads, tokens, width = q_1GTE.shape
        kv_heads = self.k_1VCE.shape[1]
        together = heads // kv_heads
        q = q_1GTE.reshape(1, kv_heads, together * tokens, width)
        mask = visible_TP.repeat(together, 1)
        mixed = functional.scaled_dot_product_attention(q, self.k_1VCE, self.v_1VCE, attn_mask=mask)
        return mixed.reshape(1, heads, tokens, width)


def block_of_positions(start: Tensor, tokens: int) -> Tensor:
    """start .. start+tokens-1, [T]; `start` is a tensor, so that recorded work can move on."""
    return start + torch.arange(tokens, device=start.device)
