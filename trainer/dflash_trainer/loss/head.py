"""The frozen head and its cross-entropy, a few rows at a time, with the gradient made in the forward pass.

Logits of a whole batch would be gigabytes. A chunk's logits give its losses, then its weights, then, in place of
the logits, the gradient, which one product turns into the gradient of the hidden states. The head is frozen, so
nothing else is needed and the backward pass only scales what is already there.
"""

# Tensor letters: see dflash_trainer.model.

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor
from torch.nn import functional

from dflash_trainer.loss.vocabulary import logits_gradient_, row_terms

WeightRule = Callable[[Tensor, Tensor], Tensor]
"""(log-probability of the right token, supervised), both [blocks, W], to the weights of the slots."""


class HeadProducts(Protocol):
    """The two matrix products with the frozen head."""

    def logits(self, hidden_MD: Tensor) -> Tensor: ...

    def input_gradient(self, gradient_MV: Tensor) -> Tensor: ...


class PlainHead:
    """Products in the head's own type."""

    def __init__(self, weight_VD: Tensor) -> None:
        self.weight_VD = weight_VD

    def logits(self, hidden_MD: Tensor) -> Tensor:
        return functional.linear(hidden_MD, self.weight_VD)

    def input_gradient(self, gradient_MV: Tensor) -> Tensor:
        return gradient_MV @ self.weight_VD


class HeadLoss(NamedTuple):
    """Sum of weighted losses (differentiable) and what was seen on the way, [M/W, W] each."""

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
    """Weighted cross-entropy summed over all rows.

    Args:
        rule: gives the weights of a chunk's blocks; it is called once for each chunk of whole blocks.
        slots: W, rows of one block.
        chunk: most rows of logits held at once; chunks are whole blocks and as equal as can be.
    """
    rows = rows_per_chunk(hidden_MD.shape[0], slots=slots, chunk=chunk)
    total, weights, correct = _HeadLoss.apply(hidden_MD, labels_M, supervised_M, head, rule, slots, rows)
    return HeadLoss(total, weights, correct)


def rows_per_chunk(rows: int, *, slots: int, chunk: int) -> int:
    """Rows of a chunk of whole blocks, at most `chunk` (but at least one block); equal chunks compile once."""
    blocks = rows // slots
    most = max(1, chunk // slots)
    chunks = max(1, -(-blocks // most))
    return max(1, -(-blocks // chunks)) * slots


class _HeadLoss(torch.autograd.Function):
    """Computes the hidden states' gradient in forward and hands it out, scaled, in backward."""

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
        wanted = ctx.needs_input_grad[0]
        gradient_MD = torch.empty_like(hidden_MD) if wanted else None
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
                del gradient_MV  # the same memory; the next chunk's logits come beside what is still named
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
