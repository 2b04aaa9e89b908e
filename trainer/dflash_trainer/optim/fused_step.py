"""AdamW in one pass over memory: bf16 gradient in; weight (bf16 and the rest of its fp32) and two moments out."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from dflash_trainer.compilation import WorkerCompiler
from dflash_trainer.optim.split_fp32 import join, split


class StepNumbers(NamedTuple):
    """The scalars of a step, as tensors on the device so that a new value never compiles anything."""

    lr: Tensor
    scale: Tensor
    """Multiplies the gradient: clipping and averaging. NaN: nothing changes."""
    correction1: Tensor
    correction2: Tensor
    """1 - beta ** step."""


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
    """Update one weight in place, all five tensors of one shape. On CUDA a single kernel.

    `weight` is bf16, `lower` the int16 that makes it fp32 (`split_fp32`).
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
