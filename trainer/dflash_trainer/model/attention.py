"""Attention of draft queries over context and draft keys: one mask, two implementations.

CUDA runs flex_attention on the tiles from `mask_tiles`. flex_attention has no backward pass on the CPU, so the CPU
runs scaled_dot_product_attention with a dense mask built from the same mask function.
"""

# Tensor letters: see dflash_trainer/__init__.py.

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
"""Tile sizes, stages and warps of flex_attention's backward kernel; bench/flex_tuning.py measures them."""


class BlockLayout(NamedTuple):
    """Sizes that determine a mask together with the anchors: L, K and the window (0: full attention)."""

    context: int
    block: int
    window: int


class Visibility(NamedTuple):
    """Attention mask of one layer type for one batch: dense [B, 1, Q, S] on the CPU, tile lists on CUDA."""

    layout: BlockLayout
    anchors_BN: Tensor
    valid_BN: Tensor
    dense: Tensor | None
    tiles: MaskTiles | None


FlexAttention = Callable[[Tensor, Tensor, Tensor, Visibility], Tensor]
"""(q [B, H, Q, E], k [B, G, S, E], v [B, G, S, E], visible) -> attention output [B, H, Q, E]."""


def visibility(anchors_BN: Tensor, valid_BN: Tensor, layout: BlockLayout) -> Visibility:
    """Prepare the mask for all layers that share `layout`; called once per batch."""
    if anchors_BN.is_cuda:
        tiles = mask_tiles(anchors_BN, valid_BN, **layout._asdict())
        return Visibility(layout, anchors_BN, valid_BN, None, tiles)
    dense = dense_mask(anchors_BN, valid_BN, **layout._asdict())
    return Visibility(layout, anchors_BN, valid_BN, dense, None)


def attend(q_BQHE: Tensor, k_BSGE: Tensor, v_BSGE: Tensor, visible: Visibility, flex: FlexAttention) -> Tensor:
    """Return grouped-query attention, [B, Q, H, E]. The output of a fully masked query is zero.

    Args:
        q_BQHE: queries of the draft slots.
        k_BSGE: keys of the context, then of the draft slots.
        v_BSGE: values, in the same order.
        visible: the attention mask.
        flex: runs the tiles on CUDA: `flex_over_tiles`, compiled unless the caller is compiled itself.
    """
    q, k, v = (x.transpose(1, 2) for x in (q_BQHE, k_BSGE, v_BSGE))
    if visible.dense is not None:
        attended = functional.scaled_dot_product_attention(q, k, v, attn_mask=visible.dense, enable_gqa=True)
    else:
        attended = flex(q, k, v, visible)
    return attended.transpose(1, 2)


def flex_over_tiles(q: Tensor, k: Tensor, v: Tensor, visible: Visibility) -> Tensor:
    """Run flex_attention on the tiles of the batch; shapes as in `FlexAttention`.

    Must be compiled: uncompiled, flex_attention materialises the full score matrix.
    """
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
    attended: Tensor = flex_attention(
        q, k, v, block_mask=mask, enable_gqa=True, kernel_options=dict(KERNEL_OPTIONS) or None
    )
    return attended
