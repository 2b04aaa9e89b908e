"""How many tokens one verification step of the target would yield, and how often each slot is right."""

# Tensor letters: see dflash_trainer.model.

from __future__ import annotations

import torch
from torch import Tensor


def accept_length(correct_NW: Tensor, valid_N: Tensor) -> Tensor:
    """Mean over valid blocks of 1 + the number of leading right slots: what a server calls acceptance length.

    A slot that is not supervised counts as wrong, so blocks at the end of an answer are short. 0 without blocks.
    """
    leading_N = correct_NW.long().cumprod(-1).sum(-1) + 1
    return (leading_N * valid_N).sum() / valid_N.sum().clamp(min=1)


def accuracy_per_slot(correct_NW: Tensor, supervised_NW: Tensor) -> Tensor:
    """Part of the supervised tokens each slot predicts, [W] for slots 1..B-1; NaN where a slot had none."""
    counted = supervised_NW.sum(0)
    right = (correct_NW & supervised_NW).sum(0)
    return torch.where(counted > 0, right / counted, torch.nan)
