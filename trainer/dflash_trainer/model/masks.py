"""The drafter's attention mask, composed of small pure functions of query and key indices.

Keys are the L context positions followed by the Q draft slots; queries are the Q draft slots.
A block sees the context strictly before its anchor, and itself.
"""

# Tensor letters: see dflash_trainer/__init__.py.

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

MaskMod = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]


def sees_context(anchor: Tensor, key: Tensor, *, context: int) -> Tensor:
    """Select context keys strictly before the block's anchor."""
    return (key < context) & (key < anchor)


def in_window(query_position: Tensor, key_position: Tensor, *, window: int) -> Tensor:
    """Select keys less than `window` positions behind the query."""
    return query_position - key_position < window


def same_block(query: Tensor, key: Tensor, *, context: int, block: int) -> Tensor:
    """Select draft keys of the query's own block."""
    return (key >= context) & (query // block == (key - context) // block)


def not_later_in_block(query: Tensor, key: Tensor, *, context: int, block: int) -> Tensor:
    """Select draft keys whose slot is not after the query's slot."""
    return (key - context) % block <= query % block


def block_mask_mod(anchors_BN: Tensor, valid_BN: Tensor, *, context: int, block: int, window: int) -> MaskMod:
    """Return the drafter's mask as a function of (row, head, query, key).

    A full layer (`window` 0) is bidirectional inside a block. A sliding layer is causal inside a block, as in
    inference servers. Padding blocks (valid False) are fully masked.

    Args:
        anchors_BN: positions of the anchors.
        valid_BN: False for padding blocks.
        context: L.
        block: K.
        window: positions that a sliding layer sees; 0 for a full layer.
    """
    last = anchors_BN.shape[1] - 1

    def full(row: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        number = (query // block).clamp(max=last)
        visible = sees_context(anchors_BN[row, number], key, context=context)
        visible = visible | same_block(query, key, context=context, block=block)
        return visible & valid_BN[row, number]

    def sliding(row: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        number = (query // block).clamp(max=last)
        anchor = anchors_BN[row, number]
        before = sees_context(anchor, key, context=context)
        before = before & in_window(anchor + query % block, key, window=window)
        own = same_block(query, key, context=context, block=block)
        own = own & not_later_in_block(query, key, context=context, block=block)
        if window < block:
            own = own & in_window(query % block, (key - context) % block, window=window)
        return (before | own) & valid_BN[row, number]

    return sliding if window else full


def dense_mask(anchors_BN: Tensor, valid_BN: Tensor, *, context: int, block: int, window: int) -> Tensor:
    """Return the same mask as a boolean tensor [B, 1, Q, S], for scaled_dot_product_attention."""
    device = anchors_BN.device
    rows, blocks = anchors_BN.shape
    mask = block_mask_mod(anchors_BN, valid_BN, context=context, block=block, window=window)
    row = torch.arange(rows, device=device)[:, None, None]
    query = torch.arange(blocks * block, device=device)[None, :, None]
    key = torch.arange(context + blocks * block, device=device)[None, None, :]
    return mask(row, torch.zeros_like(row), query, key)[:, None]
