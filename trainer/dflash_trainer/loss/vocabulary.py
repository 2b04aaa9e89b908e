"""Two passes over a chunk of logits: one computes the terms of the loss, one overwrites them with their gradient."""

# Tensor letters: see dflash_trainer/__init__.py.

from __future__ import annotations

import torch
from torch import Tensor


def row_terms(logits_MV: Tensor, labels_M: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return each row's log-probability of the label, log-sum-exp and argmax (the first of equals), each [M]."""
    if logits_MV.is_cuda:
        from dflash_trainer.loss.vocabulary_cuda import row_terms_cuda

        return row_terms_cuda(logits_MV, labels_M)
    wide = _wide(logits_MV)
    lse = wide.logsumexp(-1)
    return wide.gather(-1, labels_M[:, None])[:, 0] - lse, lse, wide.argmax(-1)


def logits_gradient_(logits_MV: Tensor, labels_M: Tensor, lse_M: Tensor, weight_M: Tensor) -> Tensor:
    """Overwrite the logits with weight * (softmax - one-hot) and return them, [M, V]."""
    if logits_MV.is_cuda:
        from dflash_trainer.loss.vocabulary_cuda import logits_gradient_cuda_

        return logits_gradient_cuda_(logits_MV, labels_M, lse_M, weight_M)
    probability = _wide(logits_MV).sub(lse_M[:, None]).exp_()
    probability[torch.arange(len(labels_M)), labels_M] -= 1.0
    return logits_MV.copy_(probability.mul_(weight_M[:, None]))


def _wide(logits: Tensor) -> Tensor:
    """Convert to fp32 unless already that wide."""
    return logits.float() if logits.dtype.itemsize < 4 else logits
