"""Which tiles of the attention matrix hold anything, worked out straight from the anchors.

flex_attention skips empty tiles and skips the mask function in full ones. The usual way to find them evaluates the
mask for every (query, key); here a tile's state follows from the smallest and largest anchor of its blocks, so the
cost is that of a table of tiles (64 x 96 for 512 blocks of 16 over 4096 tokens), a few small launches. It is not
compiled: Triton takes minutes to compile the sort. A tile may be called partial although it is empty or full: that is
only slower.
"""

# Shape letters: R rows, N blocks, S context, Q queries, K keys, I query tiles, J key tiles.

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


def mask_tiles(anchors_RN: Tensor, valid_RN: Tensor, *, context: int, block: int, window: int) -> MaskTiles:
    """Tile lists of `masks.block_mask_mod` with the same arguments."""
    some_RIJ, full_RIJ = tile_tables(anchors_RN, valid_RN, context=context, block=block, window=window)
    partial_RIJ = some_RIJ & ~full_RIJ
    return MaskTiles(
        *_ordered(partial_RIJ),
        *_ordered(full_RIJ),
        *_ordered(partial_RIJ.transpose(1, 2)),
        *_ordered(full_RIJ.transpose(1, 2)),
    )


def tile_tables(
    anchors_RN: Tensor, valid_RN: Tensor, *, context: int, block: int, window: int
) -> tuple[Tensor, Tensor]:
    """(may hold something, is certainly full), each [R, I, J] bool."""
    device = anchors_RN.device
    blocks = anchors_RN.shape[1]
    queries, keys = blocks * block, context + blocks * block
    first_I = torch.arange(0, queries, TILE, device=device)
    last_I = (first_I + TILE - 1).clamp(max=queries - 1)
    low_RI, high_RI, any_RI, all_RI = _anchor_range(anchors_RN, valid_RN, first_I // block, last_I // block, block)
    start_J = torch.arange(0, keys, TILE, device=device)
    end_J = (start_J + TILE - 1).clamp(max=keys - 1)

    context_end_J = end_J.clamp(max=context - 1)
    some = any_RI[:, :, None] & (start_J < context) & (start_J < high_RI[:, :, None])
    full = all_RI[:, :, None] & (start_J + TILE <= context) & (end_J < low_RI[:, :, None])
    if window:
        some = some & (low_RI[:, :, None] - context_end_J < window)
        full = full & (high_RI[:, :, None] + block - 1 - start_J < window)
    own = _own_tiles(first_I // block, last_I // block, start_J, end_J, context=context, block=block)
    return some | (own & any_RI[:, :, None]), full


def _anchor_range(
    anchors_RN: Tensor, valid_RN: Tensor, first_I: Tensor, last_I: Tensor, block: int
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Smallest and largest valid anchor of each query tile, and whether any and all of its blocks are valid."""
    width = TILE // block + 2
    member_IW = (first_I[:, None] + torch.arange(width, device=first_I.device)).clamp(max=anchors_RN.shape[1] - 1)
    inside_IW = member_IW <= last_I[:, None]
    valid_RIW = valid_RN[:, member_IW] & inside_IW
    anchor_RIW = anchors_RN[:, member_IW]
    big = torch.iinfo(anchors_RN.dtype).max // 4
    low_RI = anchor_RIW.masked_fill(~valid_RIW, big).amin(-1)
    high_RI = anchor_RIW.masked_fill(~valid_RIW, -1).amax(-1)
    return low_RI, high_RI, valid_RIW.any(-1), (valid_RIW | ~inside_IW).all(-1)


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
