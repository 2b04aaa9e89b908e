"""Attention of draft queries over context and draft keys: one mask, two ways to run it.

CUDA runs flex_attention over the tiles that `mask_tiles` found. CPU has no backward for it, so it runs
scaled_dot_product_attention with the dense table of the same mask function.
"""

# Tensor letters: see dflash_trainer.model.

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from torch import Tensor
from torch.nn import functional
from torch.nn.attention.flex_attention import BlockMask, flex_attention

from dflash_trainer.model.mask_tiles import TILE, MaskTiles, mask_tiles
from dflash_trainer.model.masks import block_mask_mod, dense_mask

KERNEL_OPTIONS: dict[str, int] = {
    "bwd_BLOCK_M1": 32,
    "bwd_BLOCK_N1": 64,
    "bwd_BLOCK_M2": 64,
    "bwd_BLOCK_N2": 32,
    "bwd_num_stages": 3,
    "bwd_num_warps": 4,
}
"""Tiles, stages and warps of flex_attention's backward kernel; bench/flex_tuning.py measures them."""


class BlockLayout(NamedTuple):
    """The numbers a mask depends on besides the anchors."""

    context: int
    block: int
    window: int


class Visibility(NamedTuple):
    """What one kind of layer sees in this batch: the dense table on CPU, tile lists on CUDA."""

    layout: BlockLayout
    anchors_BN: Tensor
    valid_BN: Tensor
    dense: Tensor | None
    tiles: MaskTiles | None


FlexAttention = Callable[[Tensor, Tensor, Tensor, Visibility], Tensor]
"""(q, k, v, visible) to mixed values, all [B, heads, positions, E]."""


def visibility(anchors_BN: Tensor, valid_BN: Tensor, layout: BlockLayout) -> Visibility:
    """Prepare the mask of every layer that shares `layout`; once a batch."""
    if anchors_BN.is_cuda:
        tiles = mask_tiles(anchors_BN, valid_BN, **layout._asdict())
        return Visibility(layout, anchors_BN, valid_BN, None, tiles)
    dense = dense_mask(anchors_BN, valid_BN, **layout._asdict())
    return Visibility(layout, anchors_BN, valid_BN, dense, None)


def attend(q_BQHE: Tensor, k_BSGE: Tensor, v_BSGE: Tensor, visible: Visibility, flex: FlexAttention) -> Tensor:
    """Grouped-query attention; returns [B, Q, H, E]. A query that sees nothing gets zeros.

    Args:
        flex: runs the tiles of CUDA: `flex_over_tiles`, compiled unless the caller is compiled itself.
    """
    q, k, v = (x.transpose(1, 2) for x in (q_BQHE, k_BSGE, v_BSGE))
    if visible.dense is not None:
        mixed = functional.scaled_dot_product_attention(q, k, v, attn_mask=visible.dense, enable_gqa=True)
    else:
        mixed = flex(q, k, v, visible)
    return mixed.transpose(1, 2)


def flex_over_tiles(q: Tensor, k: Tensor, v: Tensor, visible: Visibility) -> Tensor:
    """flex_attention with the batch's tiles; meant to be compiled (uncompiled it would hold every score)."""
    assert visible.tiles is not None
    tiles, layout = visible.tiles, visible.layout
    mask = BlockMask(
        seq_lengths=(q.shape[2], k.shape[2]),
        kv_num_blocks=tiles.kv_num,
        kv_indices=tiles.kv_index,
        full_kv_num_blocks=tiles.full_kv_num,
        full_kv_indices=tiles.full_kv_index,
        q_num_blocks=tiles.q_num,
        q_indices=tiles.q_index,
        full_q_num_blocks=tiles.full_q_num,
        full_q_indices=tiles.full_q_index,
        BLOCK_SIZE=(TILE, TILE),
        mask_mod=block_mask_mod(visible.anchors_BN, visible.valid_BN, **layout._asdict()),
    )
    mixed: Tensor = flex_attention(
        q, k, v, block_mask=mask, enable_gqa=True, kernel_options=dict(KERNEL_OPTIONS) or None
    )
    return mixed
