"""Rotary position embedding over the whole head, half-split layout."""

from __future__ import annotations

import torch
from torch import Tensor


def rope_tables(positions: Tensor, *, head_dim: int, theta: float) -> tuple[Tensor, Tensor]:
    """Cosine and sine of every position, fp32.

    Args:
        positions: [B, T] int.
    Returns:
        two tensors [B, T, head_dim].
    """
    exponent = torch.arange(0, head_dim, 2, dtype=torch.int64, device=positions.device).float() / head_dim
    angle = positions.float()[..., None] * (1.0 / theta**exponent)
    angle = torch.cat((angle, angle), dim=-1)
    return angle.cos(), angle.sin()


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotate x [B, T, heads, head_dim] by tables [B, T, head_dim]; computed in fp32, returned in x's type."""
    first, second = x.float().chunk(2, dim=-1)
    turned = torch.cat((-second, first), dim=-1)
    return (x.float() * cos[:, :, None] + turned * sin[:, :, None]).to(x.dtype)
