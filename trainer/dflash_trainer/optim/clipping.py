"""What the sum of gradients is multiplied by: clipping and averaging, worked out on the host or on the device."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


def host_scale(norm: float, *, weight: float, clip: float) -> float:
    """Factor of a sum over `weight` whose mean has this norm; `clip` is the largest norm left alone, 0 for any."""
    factor = min(1.0, clip / norm) if clip and norm > 0 else 1.0
    return factor / weight


def device_scale(norms: Sequence[Tensor], *, weight: float, clip: float) -> Tensor:
    """The same from the norms of the sum's parts, scalars on one device, without waiting for them; fp32.

    NaN when the norm is not finite: an update of that scale changes nothing.
    """
    parts = torch.stack(list(norms)).double()
    norm = torch.linalg.vector_norm(parts) / weight
    factor = (clip / norm).clamp(max=1.0) if clip else torch.ones_like(norm)
    return torch.where(norm.isfinite(), factor / weight, torch.nan).float()
