"""Rotary position embedding over the full head dimension, half-split layout."""

# Tensor letters: see dflash_trainer/__init__.py.

from __future__ import annotations

import torch
from torch import Tensor


def rope_tables(positions_BT: Tensor, *, head_dim: int, theta: float) -> tuple[Tensor, Tensor]:
    """Return cosine and sine of integer positions, fp32, each [B, T, E]."""
    exponent = torch.arange(0, head_dim, 2, dtype=torch.int64, device=positions_BT.device).float() / head_dim
    angle = positions_BT.float()[..., None] * (1.0 / theta**exponent)
    angle = torch.cat((angle, angle), dim=-1)
    return angle.cos(), angle.sin()


def rotate(x_BTHE: Tensor, cos_BTE: Tensor, sin_BTE: Tensor) -> Tensor:
    """Apply RoPE to queries or keys; computes in fp32 and returns the dtype of the input."""
    x = x_BTHE.float()
    first, second = x.chunk(2, dim=-1)
    rotated = torch.cat((-second, first), dim=-1)
    return (x * cos_BTE[:, :, None] + rotated * sin_BTE[:, :, None]).to(x_BTHE.dtype)
