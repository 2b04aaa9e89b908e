"""Random anchors: the positions at which draft blocks start."""

# Tensor letters: see dflash_trainer/__init__.py.

from __future__ import annotations

import torch
from torch import Tensor


def draw_anchors(loss_mask_BL: Tensor, num_anchors: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Draw exactly `num_anchors` anchors per row, uniformly without replacement, in ascending order.

    Candidates are positions p where p and p+1 are both supervised. A row with fewer candidates uses all of them and
    is padded with anchors at position 0 whose valid flag is False, so that shapes never vary.

    Args:
        loss_mask_BL: nonzero where a token is supervised; on the generator's device.
        num_anchors: N.
        generator: source of randomness.

    Returns:
        Anchors [B, N] int64 and valid [B, N] bool.
    """
    supervised_BL = loss_mask_BL != 0
    rows, length = supervised_BL.shape
    candidate_BL = torch.zeros_like(supervised_BL)
    candidate_BL[:, :-1] = supervised_BL[:, :-1] & supervised_BL[:, 1:]
    # 64-bit draws make ties unlikely; a tie would favour the earlier position.
    draw_BL = torch.rand(rows, length, dtype=torch.float64, device=loss_mask_BL.device, generator=generator)
    draw_BL = draw_BL.masked_fill(~candidate_BL, -1.0)
    drawn = min(num_anchors, length)
    best_BN, position_BN = draw_BL.topk(drawn, dim=1)
    position_BN = torch.where(best_BN >= 0, position_BN, length)
    anchors_BN = torch.full((rows, num_anchors), length, dtype=torch.int64, device=loss_mask_BL.device)
    anchors_BN[:, :drawn] = position_BN.sort(dim=1).values
    valid_BN = anchors_BN < length
    return anchors_BN.masked_fill(~valid_BN, 0), valid_BN
