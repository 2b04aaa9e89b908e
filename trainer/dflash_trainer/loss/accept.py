"""Simulated acceptance length, and accuracy per slot."""

# Tensor letters: see dflash_trainer/__init__.py.

from __future__ import annotations

import torch
from torch import Tensor


def accept_length(correct_AW: Tensor, valid_A: Tensor) -> Tensor:
    """Return the mean over valid blocks of 1 + the number of leading correct slots, as servers report it; a scalar.

    Slots that are not supervised count as wrong, which shortens blocks at the end of an answer. 0 without blocks.
    """
    accepted_A = correct_AW.long().cumprod(-1).sum(-1) + 1
    return (accepted_A * valid_A).sum() / valid_A.sum().clamp(min=1)


def accuracy_per_slot(correct_AW: Tensor, supervised_AW: Tensor) -> Tensor:
    """Return the fraction of supervised tokens predicted correctly, [W]; NaN for a slot without supervised tokens."""
    supervised_W = supervised_AW.sum(0)
    correct_W = (correct_AW & supervised_AW).sum(0)
    return torch.where(supervised_W > 0, correct_W / supervised_W, torch.nan)
