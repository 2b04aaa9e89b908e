"""Scale of the summed gradients (averaging and clipping), computed on the host or on the device."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


def host_scale(norm: float, *, weight: float, clip: float) -> float:
    """Return the scale of a gradient sum whose mean over `weight` has this norm; `clip` 0 disables clipping."""
    factor = min(1.0, clip / norm) if clip and norm > 0 else 1.0
    return factor / weight


def device_scale(norms: Sequence[Tensor], *, weight: float, clip: float) -> Tensor:
    """Return the same scale from the norms of the parts of the sum, without synchronizing; an fp32 scalar.

    The norms are scalars on one device. The scale is NaN when the norm is not finite: an update then changes nothing.
    """
    parts = torch.stack(list(norms)).double()
    norm = torch.linalg.vector_norm(parts) / weight
    factor = (clip / norm).clamp(max=1.0) if clip else torch.ones_like(norm)
    return torch.where(norm.isfinite(), factor / weight, torch.nan).float()
