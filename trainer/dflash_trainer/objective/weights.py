"""How much each draft slot counts. Slots here are 1..B-1: slot 0 is the anchor and is never predicted."""

# Shape letters: R rows, N blocks, W = B-1 predicted slots.

from __future__ import annotations

import torch
from torch import Tensor


def decay_weights(supervised_RNW: Tensor, gamma: float) -> Tensor:
    """exp(-(k-1)/gamma) for slot k, zero where a token is not supervised; fp32."""
    slot_W = torch.arange(supervised_RNW.shape[-1], device=supervised_RNW.device, dtype=torch.float32)
    return supervised_RNW.float() * torch.exp(-slot_W / gamma)


def dpace_weights(probability_RNW: Tensor, supervised_RNW: Tensor, alpha: float) -> Tensor:
    """D-PACE: w_j = sum over m >= j of prod over i <= m of ((1-alpha) q_i + alpha), detached.

    Slots that are not supervised neither multiply nor count.
    """
    smooth = (1.0 - alpha) * probability_RNW.detach() + alpha
    smooth = torch.where(supervised_RNW, smooth, torch.ones_like(smooth))
    reached = smooth.cumprod(-1) * supervised_RNW
    return reached.flip(-1).cumsum(-1).flip(-1) * supervised_RNW
