"""How much each draft slot counts. Slots here are 1..B-1: slot 0 is the anchor and is never predicted."""

# Tensor letters: see dflash_trainer.model.

from __future__ import annotations

import torch
from torch import Tensor


def decay_weights(supervised_BNW: Tensor, gamma: float) -> Tensor:
    """exp(-(k-1)/gamma) for slot k, zero where a token is not supervised; fp32."""
    slot_W = torch.arange(supervised_BNW.shape[-1], device=supervised_BNW.device, dtype=torch.float32)
    return supervised_BNW.float() * torch.exp(-slot_W / gamma)


def dpace_weights(probability_BNW: Tensor, supervised_BNW: Tensor, alpha: float) -> Tensor:
    """D-PACE: w_j = sum over m >= j of prod over i <= m of ((1-alpha) q_i + alpha), detached.

    Slots that are not supervised neither multiply nor count.
    """
    smooth = (1.0 - alpha) * probability_BNW.detach() + alpha
    smooth = torch.where(supervised_BNW, smooth, torch.ones_like(smooth))
    reached = smooth.cumprod(-1) * supervised_BNW
    return reached.flip(-1).cumsum(-1).flip(-1) * supervised_BNW
