"""Weights of the predicted slots 1 .. K-1 in the loss. Slot 0 is the anchor and is never predicted."""

# Tensor letters: see dflash_trainer/__init__.py.

from __future__ import annotations

import torch
from torch import Tensor


def decay_weights(supervised_AW: Tensor, gamma: float) -> Tensor:
    """Return exp(-(k-1)/gamma) for slot k, 0 where a token is not supervised; fp32 [A, W]."""
    slot_W = torch.arange(supervised_AW.shape[-1], device=supervised_AW.device, dtype=torch.float32)
    return supervised_AW.float() * torch.exp(-slot_W / gamma)


def dpace_weights(probability_AW: Tensor, supervised_AW: Tensor, alpha: float) -> Tensor:
    """Return D-PACE weights [A, W]: w_j = sum over m >= j of prod over i <= m of ((1-alpha) q_i + alpha), detached.

    Slots that are not supervised have weight 0 and are left out of sum and product.
    """
    smooth = (1.0 - alpha) * probability_AW.detach() + alpha
    smooth = torch.where(supervised_AW, smooth, torch.ones_like(smooth))
    reached = smooth.cumprod(-1) * supervised_AW
    return reached.flip(-1).cumsum(-1).flip(-1) * supervised_AW
