"""Split an fp32 weight into the bf16 weight of the model and the remaining 16 bits, and join them again.

The bf16 number nearest to an fp32 number is its upper half, or one more. Both halves together restore the fp32 number
exactly, in 4 bytes instead of 6, and the optimizer reads and writes 4 bytes less per weight.
"""

from __future__ import annotations

import torch
from torch import Tensor

_HALF = 1 << 15
_NAN = 0x7FC0


def split(wide: Tensor) -> tuple[Tensor, Tensor]:
    """Return (bits of the nearest bf16 number, remainder), both int16, of an fp32 tensor of any shape.

    A number halfway between two bf16 numbers rounds away from zero. torch rounds it to the even neighbour, which would
    need a 17th bit. NaN stays NaN in bf16 and after join().
    """
    bits = wide.view(torch.int32)
    upper = torch.where(wide.isnan(), _NAN, (bits + _HALF) >> 16)
    return upper.to(torch.int16), (bits - (upper << 16)).to(torch.int16)


def join(upper: Tensor, lower: Tensor) -> Tensor:
    """Return the fp32 tensor that `split` split, bit for bit (except NaN payloads)."""
    return ((upper.to(torch.int32) << 16) + lower.to(torch.int32)).view(torch.float32)
