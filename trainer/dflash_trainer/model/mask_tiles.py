"""Tile lists of the attention mask, computed directly from the anchors.

flex_attention skips empty tiles, and it skips the mask function in full tiles. `create_block_mask` evaluates the mask
for every (query, key) pair. Here the smallest and largest anchor of a tile's blocks decide whether the tile is empty,
partial or full, so only a small table of tiles is computed (64 x 96 for 512 blocks of 16 and 4096 tokens). Calling an
empty or full tile partial is correct, only slower. The code is not compiled: Triton takes minutes to compile the sort.
"""

# Tensor letters: see dflash_trainer/__init__.py.

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

TILE = 128
"""Queries and keys per tile."""


class MaskTiles(NamedTuple):
    """Tile lists for flex_attention's BlockMask, int32: counts and indices of the partial and of the full tiles.

    Counts are [B, 1, I] and indices [B, 1, I, J]; in the fields with q, [B, 1, J] and [B, 1, J, I].
    """

    kv_num: Tensor
    kv_index: Tensor
    full_kv_num: Tensor
    full_kv_index: Tensor
    q_num: Tensor
    q_index: Tensor
    full_q_num: Tensor
    full_q_index: Tensor


def mask_tiles(anchors_BN: Tensor, valid_BN: Tensor, *, context: int, block: int, window: int) -> MaskTiles:
    """Return the tile lists of `masks.block_mask_mod` with the same arguments."""
    nonempty_BIJ, full_BIJ = tile_tables(anchors_BN, valid_BN, context=context, block=block, window=window)
    partial_BIJ = nonempty_BIJ & ~full_BIJ
    return MaskTiles(
        *_ordered(partial_BIJ),
        *_ordered(full_BIJ),
        *_ordered(partial_BIJ.transpose(1, 2)),
        *_ordered(full_BIJ.transpose(1, 2)),
    )


def tile_tables(
    anchors_BN: Tensor, valid_BN: Tensor, *, context: int, block: int, window: int
) -> tuple[Tensor, Tensor]:
    """Return (tile may be non-empty, tile is certainly full), each [B, I, J] bool."""
    device = anchors_BN.device
    blocks = anchors_BN.shape[1]
    queries, keys = blocks * block, context + blocks * block
    first_I = torch.arange(0, queries, TILE, device=device)
    last_I = (first_I + TILE - 1).clamp(max=queries - 1)
    low_BI, high_BI, any_BI, all_BI = _anchor_range(anchors_BN, valid_BN, first_I // block, last_I // block, block)
    start_J = torch.arange(0, keys, TILE, device=device)
    end_J = (start_J + TILE - 1).clamp(max=keys - 1)

    context_end_J = end_J.clamp(max=context - 1)
    nonempty_BIJ = any_BI[:, :, None] & (start_J < context) & (start_J < high_BI[:, :, None])
    full_BIJ = all_BI[:, :, None] & (start_J + TILE <= context) & (end_J < low_BI[:, :, None])
    if window:
        nonempty_BIJ = nonempty_BIJ & (low_BI[:, :, None] - context_end_J < window)
        full_BIJ = full_BIJ & (high_BI[:, :, None] + block - 1 - start_J < window)
    own_IJ = _own_block_tiles(first_I // block, last_I // block, start_J, end_J, context=context, block=block)
    return nonempty_BIJ | (own_IJ & any_BI[:, :, None]), full_BIJ


def _anchor_range(
    anchors_BN: Tensor, valid_BN: Tensor, first_I: Tensor, last_I: Tensor, block: int
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return, for each tile of queries, its smallest and largest valid anchor, and if any and if all blocks are valid.

    `first_I` and `last_I` are the first and last block of a tile; each result is [B, I].
    """
    most = TILE // block + 2  # blocks that one tile can overlap: the last axis of the tensors below
    blocks = (first_I[:, None] + torch.arange(most, device=first_I.device)).clamp(max=anchors_BN.shape[1] - 1)
    inside = blocks <= last_I[:, None]
    valid = valid_BN[:, blocks] & inside
    anchors = anchors_BN[:, blocks]
    big = torch.iinfo(anchors_BN.dtype).max // 4
    low_BI = anchors.masked_fill(~valid, big).amin(-1)
    high_BI = anchors.masked_fill(~valid, -1).amax(-1)
    return low_BI, high_BI, valid.any(-1), (valid | ~inside).all(-1)


def _own_block_tiles(
    first_I: Tensor, last_I: Tensor, start_J: Tensor, end_J: Tensor, *, context: int, block: int
) -> Tensor:
    """Return the tiles that may hold draft keys of the query's own block, [I, J] bool."""
    first_J = (start_J - context).clamp(min=0) // block
    last_J = (end_J - context).clamp(min=0) // block
    overlap_IJ = (first_I[:, None] <= last_J) & (first_J <= last_I[:, None])
    return overlap_IJ & (end_J >= context)


def _ordered(table: Tensor) -> tuple[Tensor, Tensor]:
    """Return per row of a [B, I, J] table the number of tiles set, [B, 1, I], and indices, set first, [B, 1, I, J]."""
    number = table.sum(-1, dtype=torch.int32)
    index = torch.argsort(table.to(torch.int32), dim=-1, descending=True, stable=True).to(torch.int32)
    return number[:, None].contiguous(), index[:, None].contiguous()
