"""The passes of `vocabulary` as Triton kernels that read and write each logit once. Imported only on CUDA."""

# Tensor letters: see dflash_trainer/__init__.py.

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

_COLUMNS = 4096


def row_terms_cuda(logits_MV: Tensor, labels_M: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Compute `vocabulary.row_terms` with one program per row."""
    rows, columns = logits_MV.shape
    log_q = torch.empty(rows, dtype=torch.float32, device=logits_MV.device)
    lse, best = torch.empty_like(log_q), torch.empty_like(labels_M)
    stride = logits_MV.stride(0)
    _row_terms[(rows,)](logits_MV, labels_M, log_q, lse, best, columns, stride, COLUMNS=_COLUMNS, num_warps=8)
    return log_q, lse, best


def logits_gradient_cuda_(logits_MV: Tensor, labels_M: Tensor, lse_M: Tensor, weight_M: Tensor) -> Tensor:
    """Compute `vocabulary.logits_gradient_` with one program per segment of a row."""
    rows, columns = logits_MV.shape
    grid = (rows, triton.cdiv(columns, _COLUMNS))
    stride = logits_MV.stride(0)
    _gradient[grid](logits_MV, labels_M, lse_M, weight_M, columns, stride, COLUMNS=_COLUMNS, num_warps=8)
    return logits_MV


@triton.jit
def _row_terms(logits, labels, log_q, lse, best, columns, stride, COLUMNS: tl.constexpr):  # type: ignore  # noqa: ANN001, ANN202
    """Online softmax: each lane keeps its maximum, its position and its sum; lanes are reduced once, at the end."""
    row = tl.program_id(0)
    start = logits + row.to(tl.int64) * stride
    lane = tl.arange(0, COLUMNS)
    highest = tl.full([COLUMNS], -1e30, tl.float32)
    total = tl.zeros([COLUMNS], tl.float32)
    position = tl.zeros([COLUMNS], tl.int32)
    for first in range(0, columns, COLUMNS):
        column = first + lane
        value = tl.load(start + column, mask=column < columns, other=-1e30).to(tl.float32)
        new = tl.maximum(highest, value)
        total = total * tl.exp(highest - new) + tl.where(column < columns, tl.exp(value - new), 0.0)
        position = tl.where(value > highest, column, position)
        highest = new
    top = tl.max(highest, axis=0)
    sum_log = top + tl.log(tl.sum(total * tl.exp(highest - top), axis=0))
    winner = tl.min(tl.where(highest == top, position, columns), axis=0)
    label = tl.load(labels + row)
    picked = tl.load(start + label).to(tl.float32)
    tl.store(log_q + row, picked - sum_log)
    tl.store(lse + row, sum_log)
    tl.store(best + row, winner.to(tl.int64))


@triton.jit
def _gradient(logits, labels, lse, weight, columns, stride, COLUMNS: tl.constexpr):  # type: ignore  # noqa: ANN001, ANN202
    """Compute in place: each element is read and written by one program only."""
    row = tl.program_id(0)
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    inside = column < columns
    pointer = logits + row.to(tl.int64) * stride + column
    value = tl.load(pointer, mask=inside, other=0.0).to(tl.float32)
    probability = tl.exp(value - tl.load(lse + row))
    hot = (column == tl.load(labels + row)).to(tl.float32)
    gradient = (probability - hot) * tl.load(weight + row)
    tl.store(pointer, gradient.to(logits.dtype.element_ty), mask=inside)
