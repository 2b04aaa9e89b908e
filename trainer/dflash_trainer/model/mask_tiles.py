"""Which tiles of the attention matrix hold anything, worked out straight from the anchors.

flex_attention skips empty tiles and skips the mask function in full ones. The usual way to find them evaluates the
mask for every (query, key); here a tile's state follows from the smallest and largest anchor of its blocks, so the
cost is that of a table of tiles (64 x 96 for 512 blocks of 16 over 4096 tokens), a few small launches. It is not
compiled: Triton takes minutes to compile the sort. A tile may be called partial although it is empty or full: that is
only slower.
"""

# Tensor letters: see dflash_trainer.model.

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

TILE = 128
"""Queries and keys of a tile."""


class MaskTiles(NamedTuple):
    """Ordered tile lists as flex_attention's BlockMask takes them; int32, [R, 1, I(, J)] and [R, 1, J(, I)]."""

    kv_num: Tensor
    kv_index: Tensor
    full_kv_num: Tensor
    full_kv_index: Tensor
    q_num: Tensor
    q_index: Tensor
    full_q_num: Tensor
    full_q_index: Tensor


def mask_tiles(anchors_BN: Tensor, valid_BN: Tensor, *, context: int, block: int, window: int) -> MaskTiles:
    """Tile lists of `masks.block_mask_mod` with the same arguments."""
    some_BIJ, full_BIJ = tile_tables(anchors_BN, valid_BN, context=context, block=block, window=window)
    partial_BIJ = some_BIJ & ~full_BIJ
    return MaskTiles(
        *_ordered(partial_BIJ),
        *_ordered(full_BIJ),
        *_ordered(partial_BIJ.transpose(1, 2)),
        *_ordered(full_BIJ.transpose(1, 2)),
    )


def tile_tables(
    anchors_BN: Tensor, valid_BN: Tensor, *, context: int, block: int, window: int
) -> tuple[Tensor, Tensor]:
    """(may hold something, is certainly full), each [B, I, J] bool."""
    device = anchors_BN.device
    blocks = anchors_BN.shape[1]
    queries, keys = blocks * block, context + blocks * block
    first_I = torch.arange(0, queries, TILE, device=device)
    last_I = (first_I + TILE - 1).clamp(max=queries - 1)
    low_BI, high_BI, any_BI, all_BI = _anchor_range(anchors_BN, valid_BN, first_I // block, last_I // block, block)
    start_J = torch.arange(0, keys, TILE, device=device)
    end_J = (start_J + TILE - 1).clamp(max=keys - 1)

    context_end_J = end_J.clamp(max=context - 1)
    some = any_BI[:, :, None] & (start_J < context) & (start_J < high_BI[:, :, None])
    full = all_BI[:, :, None] & (start_J + TILE <= context) & (end_J < low_BI[:, :, None])
    if window:
        some = some & (low_BI[:, :, None] - context_end_J < window)
        full = full & (high_BI[:, :, None] + block - 1 - start_J < window)
    own = _own_tiles(first_I // block, last_I // block, start_J, end_J, context=context, block=block)
    return some | (own & any_BI[:, :, None]), full


def _anchor_range(
    anchors_BN: Tensor, valid_BN: Tensor, first_I: Tensor, last_I: Tensor, block: int
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Smallest and largest valid anchor of each query tile, and whether any and all of its blocks are valid."""
    width = TILE // block + 2
    member_IW = (first_I[:, None] + torch.arange(width, device=first_I.device)).clamp(max=anchors_BN.shape[1] - 1)
    inside_IW = member_IW <= last_I[:, None]
    valid_BIW = valid_BN[:, member_IW] & inside_IW
    anchor_BIW = anchors_BN[:, member_IW]
    big = torch.iinfo(anchors_BN.dtype).max // 4
    low_BI = anchor_BIW.masked_fill(~valid_BIW, big).amin(-1)
    high_BI = anchor_BIW.masked_fill(~valid_BIW, -1).amax(-1)
    return low_BI, high_BI, valid_BIW.any(-1), (valid_BIW | ~inside_IW).all(-1)


def _own_tiles(first_I: Tensor, last_I: Tensor, start_J: Tensor, end_J: Tensor, *, context: int, block: int) -> Tensor:
    """Tiles where a query block may meet its own draft keys, [I, J]."""
    first_J = (start_J - context).clamp(min=0) // block
    last_J = (end_J - context).clamp(min=0) // block
    meets = (first_I[:, None] <= last_J) & (first_J <= last_I[:, None])
    return meets & (end_J >= context)


def _ordered(table: Tensor) -> tuple[Tensor, Tensor]:
    """Per row of tiles: how many are set, and the indices with the set ones first; with a head axis of 1."""
    number = table.sum(-1, dtype=torch.int32)
    index = torch.argsort(table.to(torch.int32), dim=-1, descending=True, stable=True).to(torch.int32)
    return number[:, None].contiguous(), index[:, None].contiguous()
