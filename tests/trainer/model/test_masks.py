"""The drafter's mask against a table written out by hand, and the tiles of the anchors against the mask."""

from __future__ import annotations

import pytest
import torch
from dflash_trainer.model.anchors import draw_anchors
from dflash_trainer.model.mask_tiles import TILE, tile_tables
from dflash_trainer.model.masks import dense_mask
from torch import Tensor


def brute_force(anchors: Tensor, valid: Tensor, context: int, block: int, window: int) -> Tensor:
    """The rules of the model, one (query, key) at a time."""
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
                    other, place = divmod(key - context, block)
                    seen = other == number
                    if window:
                        seen = seen and place <= slot and slot - place < window
                table[row, query, key] = seen
    return table


@pytest.mark.parametrize("window", [0, 3, 7, 20])
@pytest.mark.parametrize("block", [4, 5])
def test_dense_mask_equals_the_table(block: int, window: int) -> None:
    anchors = torch.tensor([[0, 2, 9, 17], [1, 3, 0, 0]])
    valid = torch.tensor([[True, True, True, True], [True, True, False, False]])
    mask = dense_mask(anchors, valid, context=18, block=block, window=window)
    assert mask.shape == (2, 1, 4 * block, 18 + 4 * block)
    assert torch.equal(mask[:, 0], brute_force(anchors, valid, 18, block, window))


@pytest.mark.parametrize(("block", "blocks", "context"), [(16, 40, 512), (10, 30, 384), (8, 20, 200), (16, 512, 512)])
@pytest.mark.parametrize("window", [0, 32, 300])
def test_tiles_hold_exactly_what_the_mask_holds(block: int, blocks: int, context: int, window: int) -> None:
    """No visible pair lies in a tile called empty, no hidden one in a tile called full, and few tiles are wasted."""
    mask_row = torch.ones(2, context)
    mask_row[1, : context // 2] = 0
    anchors, valid = draw_anchors(mask_row, blocks, torch.Generator().manual_seed(block + window))
    mask = dense_mask(anchors, valid, context=context, block=block, window=window)[:, 0]
    some, full = tile_tables(anchors, valid, context=context, block=block, window=window)
    spare = [-mask.shape[2] % TILE, -mask.shape[1] % TILE]
    counts = torch.nn.functional.pad(mask, (0, spare[0], 0, spare[1])).unflatten(2, (-1, TILE)).unflatten(1, (-1, TILE))
    visible = counts.sum((2, 4))
    sizes = torch.nn.functional.pad(torch.ones_like(mask), (0, spare[0], 0, spare[1]))
    whole = sizes.unflatten(2, (-1, TILE)).unflatten(1, (-1, TILE)).sum((2, 4))
    assert not (visible[~some] > 0).any()
    assert (visible[full] == whole[full]).all()
    assert not (full & ~some).any()
    assert (some & (visible == 0)).sum() <= (0.02 if blocks == 512 else 0.25) * some.sum()


def test_anchors_fill_exactly_the_slots_asked_for() -> None:
    """Ascending, without repetition, both tokens supervised; what lacks is masked and comes last."""
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


def test_anchors_are_uniform_and_repeatable() -> None:
    """Each of 10 candidates is taken about 3 times in 10 when 3 are drawn; one seed gives one draw."""
    loss_mask = torch.ones(1, 11)
    generator = torch.Generator().manual_seed(3)
    counts = torch.zeros(11)
    for _ in range(2000):
        counts[draw_anchors(loss_mask, 3, generator)[0][0]] += 1
    assert counts[10] == 0
    assert (counts[:10] - 600).abs().max() < 90
    again = [draw_anchors(loss_mask, 3, torch.Generator().manual_seed(9))[0] for _ in range(2)]
    assert torch.equal(*again)


def test_more_anchors_than_positions_is_no_error() -> None:
    anchors, valid = draw_anchors(torch.ones(1, 4), 8, torch.Generator().manual_seed(0))
    assert anchors.tolist() == [[0, 1, 2, 0, 0, 0, 0, 0]]
    assert valid.sum() == 3
