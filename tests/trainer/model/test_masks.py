"""The drafter's mask against a brute-force table, mask tiles against the mask, and anchors."""

from __future__ import annotations

import pytest
import torch
from dflash_trainer.model.anchors import draw_anchors
from dflash_trainer.model.mask_tiles import TILE, tile_tables
from dflash_trainer.model.masks import dense_mask
from torch import Tensor


def brute_force(anchors: Tensor, valid: Tensor, context: int, block: int, window: int) -> Tensor:
    """Return the mask, computed for one (query, key) pair at a time."""
    rows, blocks = anchors.shape
    table = torch.zeros(rows, blocks * block, context + blocks * block, dtype=torch.bool)
    for row in range(rows):
        for query in range(blocks * block):
            number, slot = divmod(query, block)
            anchor = int(anchors[row, number])
            if not valid[row, number]:
                continue
            for key in range(table.shape[2]):
                if key < context:
                    seen = key < anchor and (not window or anchor + slot - key < window)
                else:
                    other, key_slot = divmod(key - context, block)
                    seen = other == number
                    if window:
                        seen = seen and key_slot <= slot and slot - key_slot < window
                table[row, query, key] = seen
    return table


@pytest.mark.parametrize("window", [0, 3, 7, 20])
@pytest.mark.parametrize("block", [4, 5])
def test_dense_mask_equals_the_brute_force_table(block: int, window: int) -> None:
    anchors = torch.tensor([[0, 2, 9, 17], [1, 3, 0, 0]])
    valid = torch.tensor([[True, True, True, True], [True, True, False, False]])
    mask = dense_mask(anchors, valid, context=18, block=block, window=window)
    assert mask.shape == (2, 1, 4 * block, 18 + 4 * block)
    assert torch.equal(mask[:, 0], brute_force(anchors, valid, 18, block, window))


@pytest.mark.parametrize(("block", "blocks", "context"), [(16, 40, 512), (10, 30, 384), (8, 20, 200), (16, 512, 512)])
@pytest.mark.parametrize("window", [0, 32, 300])
def test_tiles_cover_exactly_the_mask(block: int, blocks: int, context: int, window: int) -> None:
    """Empty tiles hold no visible pair, full tiles no masked pair, and few partial tiles are really empty."""
    loss_mask = torch.ones(2, context)
    loss_mask[1, : context // 2] = 0
    anchors, valid = draw_anchors(loss_mask, blocks, torch.Generator().manual_seed(block + window))
    mask = dense_mask(anchors, valid, context=context, block=block, window=window)[:, 0]
    nonempty, full = tile_tables(anchors, valid, context=context, block=block, window=window)
    padding = [-mask.shape[2] % TILE, -mask.shape[1] % TILE]
    visible, areas = (
        torch.nn.functional.pad(pairs, (0, padding[0], 0, padding[1]))
        .unflatten(2, (-1, TILE))
        .unflatten(1, (-1, TILE))
        .sum((2, 4))
        for pairs in (mask, torch.ones_like(mask))
    )
    assert not (visible[~nonempty] > 0).any()
    assert (visible[full] == areas[full]).all()
    assert not (full & ~nonempty).any()
    assert (nonempty & (visible == 0)).sum() <= (0.02 if blocks == 512 else 0.25) * nonempty.sum()


def test_anchors_are_ascending_distinct_and_padded() -> None:
    """Both tokens of an anchor are supervised; rows with too few candidates end in padding."""
    loss_mask = torch.zeros(3, 50)
    loss_mask[0, 10:40] = 1
    loss_mask[1, 5:9] = 1
    loss_mask[2, 49] = 1
    anchors, valid = draw_anchors(loss_mask, 12, torch.Generator().manual_seed(0))
    assert anchors.shape == valid.shape == (3, 12)
    assert valid.sum(1).tolist() == [12, 3, 0]
    assert anchors[1, :3].tolist() == [5, 6, 7]
    chosen = anchors[0]
    assert (chosen[1:] > chosen[:-1]).all()
    assert chosen.min() >= 10
    assert chosen.max() <= 38
    assert not anchors[~valid].any()


def test_anchors_are_uniform_and_reproducible() -> None:
    """With 3 of 10 candidates drawn, each has a probability of 0.3; the same seed gives the same draw."""
    loss_mask = torch.ones(1, 11)
    generator = torch.Generator().manual_seed(3)
    counts = torch.zeros(11)
    for _ in range(2000):
        counts[draw_anchors(loss_mask, 3, generator)[0][0]] += 1
    assert counts[10] == 0
    assert (counts[:10] - 600).abs().max() < 90
    draws = [draw_anchors(loss_mask, 3, torch.Generator().manual_seed(9))[0] for _ in range(2)]
    assert torch.equal(*draws)


def test_more_anchors_than_positions_are_padded() -> None:
    anchors, valid = draw_anchors(torch.ones(1, 4), 8, torch.Generator().manual_seed(0))
    assert anchors.tolist() == [[0, 1, 2, 0, 0, 0, 0, 0]]
    assert valid.sum() == 3
