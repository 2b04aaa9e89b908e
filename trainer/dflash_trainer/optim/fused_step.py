"""One AdamW step in a single pass over memory: reads the gradient, updates the weight and both moments."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from dflash_trainer.compilation import WorkerCompiler
from dflash_trainer.optim.split_fp32 import join, split


class StepNumbers(NamedTuple):
    """Scalars of a step, as tensors on the device: a Python number would recompile whenever it changes."""

    lr: Tensor
    scale: Tensor
    """Factor of the gradient, for averaging and clipping. NaN: nothing changes."""
    correction1: Tensor
    correction2: Tensor
    """Bias corrections, 1 - beta ** step."""


@torch.no_grad()
def fused_step(
    weight: Tensor,
    lower: Tensor,
    first: Tensor,
    second: Tensor,
    gradient: Tensor,
    numbers: StepNumbers,
    *,
    betas: tuple[float, float],
    eps: float,
    weight_decay: float,
    compiler: WorkerCompiler,
) -> None:
    """Update one weight in place; on CUDA with a single kernel.

    Args:
        weight: bf16, of any shape; `lower`, `first`, `second` and `gradient` have the same shape.
        lower: int16, the lower half of the fp32 master (`split_fp32`).
        first: first moment.
        second: second moment.
        gradient: gradient before scaling.
        numbers: scalars of the step.
        betas: decay rates of the moments.
        eps: added to the denominator.
        weight_decay: decoupled weight decay.
        compiler: compiled functions of the owner.
    """
    update = compiler.compiled(_update, any_size=True) if weight.is_cuda else _update
    update(
        weight.view(torch.int16).view(-1),
        lower.view(-1),
        first.view(-1),
        second.view(-1),
        gradient.view(-1),
        numbers,
        betas=betas,
        eps=eps,
        weight_decay=weight_decay,
    )


def _update(
    upper: Tensor,
    lower: Tensor,
    first: Tensor,
    second: Tensor,
    gradient: Tensor,
    numbers: StepNumbers,
    *,
    betas: tuple[float, float],
    eps: float,
    weight_decay: float,
) -> None:
    bad = torch.isnan(numbers.scale)
    wide = gradient.float() * numbers.scale
    moment = torch.where(bad, first.float(), first.float() * betas[0] + wide * (1 - betas[0]))
    square = torch.where(bad, second.float(), second.float() * betas[1] + wide * wide * (1 - betas[1]))
    first.copy_(moment)
    second.copy_(square)
    direction = (moment / numbers.correction1) / ((square / numbers.correction2).sqrt() + eps)
    master = join(upper, lower)
    new = torch.where(bad, master, master * (1 - numbers.lr * weight_decay) - numbers.lr * direction)
    new_upper, new_lower = split(new)
    upper.copy_(new_upper)
    lower.copy_(new_lower)
