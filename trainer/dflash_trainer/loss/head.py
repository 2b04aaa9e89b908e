"""Frozen head and cross-entropy in chunks of rows; the forward pass computes the gradient as well.

The logits of a whole batch would take gigabytes. Each chunk of logits yields its losses and slot weights and is then
overwritten with the gradient of the logits, which one matmul turns into the gradient of the hidden states. The head is
frozen, so this is the only gradient needed, and the backward pass merely scales it.
"""

# Tensor letters: see dflash_trainer/__init__.py.

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor
from torch.nn import functional

from dflash_trainer.loss.vocabulary import logits_gradient_, row_terms

WeightRule = Callable[[Tensor, Tensor], Tensor]
"""(log-probability of the label, supervised), both [A, W], to slot weights [A, W]."""


class HeadProducts(Protocol):
    """The two matmuls with the frozen head."""

    def logits(self, hidden_MD: Tensor) -> Tensor:
        """Return logits [M, V] of hidden states."""

    def input_gradient(self, gradient_MV: Tensor) -> Tensor:
        """Return the gradient of the hidden states, [M, D], from that of the logits."""


class PlainHead:
    """Matmuls in the dtype of the head."""

    def __init__(self, weight_VD: Tensor) -> None:
        self.weight_VD = weight_VD

    def logits(self, hidden_MD: Tensor) -> Tensor:
        """Return logits [M, V] of hidden states."""
        return functional.linear(hidden_MD, self.weight_VD)

    def input_gradient(self, gradient_MV: Tensor) -> Tensor:
        """Return the gradient of the hidden states, [M, D], from that of the logits."""
        return gradient_MV @ self.weight_VD


class HeadLoss(NamedTuple):
    """Differentiable sum of the weighted losses; slot weights and correct predictions, each [A, W]."""

    total: Tensor
    weights: Tensor
    correct: Tensor


def head_loss(
    hidden_MD: Tensor,
    labels_M: Tensor,
    supervised_M: Tensor,
    head: HeadProducts,
    rule: WeightRule,
    *,
    slots: int,
    chunk: int,
) -> HeadLoss:
    """Return the weighted cross-entropy, summed over all rows.

    Args:
        hidden_MD: hidden states of the predicted slots.
        labels_M: tokens to predict.
        supervised_M: True where a prediction counts.
        head: matmuls with the frozen head.
        rule: returns the slot weights; called once per chunk.
        slots: W.
        chunk: maximum rows of logits in memory; chunks consist of whole blocks and are nearly equal in size.
    """
    rows = rows_per_chunk(hidden_MD.shape[0], slots=slots, chunk=chunk)
    total, weights, correct = _HeadLoss.apply(hidden_MD, labels_M, supervised_M, head, rule, slots, rows)
    return HeadLoss(total, weights, correct)


def rows_per_chunk(rows: int, *, slots: int, chunk: int) -> int:
    """Return the rows per chunk: whole blocks, at most `chunk` rows or one block; equal chunks compile once."""
    blocks = rows // slots
    most = max(1, chunk // slots)
    chunks = max(1, -(-blocks // most))
    return max(1, -(-blocks // chunks)) * slots


class _HeadLoss(torch.autograd.Function):
    """Computes the gradient of the hidden states in forward and scales it in backward."""

    @staticmethod
    def forward(
        ctx: Any,
        hidden_MD: Tensor,
        labels_M: Tensor,
        supervised_M: Tensor,
        head: HeadProducts,
        rule: WeightRule,
        slots: int,
        rows: int,
    ) -> tuple[Tensor, Tensor, Tensor]:
        gradient_MD = torch.empty_like(hidden_MD) if ctx.needs_input_grad[0] else None
        total = torch.zeros((), dtype=torch.float32, device=hidden_MD.device)
        weights, correct = [], []
        for start in range(0, hidden_MD.shape[0], rows):
            part = slice(start, start + rows)
            logits_MV = head.logits(hidden_MD[part])
            log_q, lse, best = row_terms(logits_MV, labels_M[part])
            weight = rule(log_q.view(-1, slots), supervised_M[part].view(-1, slots))
            total -= (log_q * weight.flatten()).sum()
            weights.append(weight)
            correct.append((best == labels_M[part]).view(-1, slots) & supervised_M[part].view(-1, slots))
            if gradient_MD is not None:
                gradient_MV = logits_gradient_(logits_MV, labels_M[part], lse, weight.flatten())
                gradient_MD[part] = head.input_gradient(gradient_MV)
                del gradient_MV  # a second name for the logits: free both before the next chunk
            del logits_MV
        if gradient_MD is not None:
            ctx.save_for_backward(gradient_MD)
        weights_all, correct_all = torch.cat(weights), torch.cat(correct)
        ctx.mark_non_differentiable(weights_all, correct_all)
        return total, weights_all, correct_all

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        (gradient_MD,) = ctx.saved_tensors
        return ((gradient_MD * gradients[0]).to(gradient_MD.dtype), None, None, None, None, None, None)
