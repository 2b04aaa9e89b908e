"""An fp32 weight kept as the bf16 weight that the model computes with and the 16 bits that this lacks.

The bf16 number nearest to an fp32 number is its upper half, or one more. So both halves together are the fp32 number
bit for bit, in 4 bytes instead of 6, and an optimizer reads and writes 4 bytes less a weight.
"""

from __future__ import annotations

import torch
from torch import Tensor

_HALF = 1 << 15
_NAN = 0x7FC0


def split(wide: Tensor) -> tuple[Tensor, Tensor]:
    """fp32 of any shape to (the nearest bf16 number's bits, what is missing), int16 both.

    A number halfway between two bf16 numbers goes to the larger in size. torch rounds those to the even one, for which
    a 17th bit would have to be kept. What is not a number stays so in both, whatever its bits.
    """
    bits = wide.view(torch.int32)
    upper = torch.where(wide.isnan(), _NAN, (bits + _HALF) >> 16)
    return upper.to(torch.int16), (bits - (upper << 16)).to(torch.int16)


def join(upper: Tensor, lower: Tensor) -> Tensor:
    """The fp32 numbers that `split` was given, bit for bit."""
    return ((upper.to(torch.int32) << 16) + lower.to(torch.int32)).view(torch.float32)
