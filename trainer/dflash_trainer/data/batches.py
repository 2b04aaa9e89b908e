"""Padded token batches of fixed shape; rows of unusable samples are empty."""

# Tensor letters: see dflash_trainer/__init__.py.

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from dflash_trainer.data.arrow import ArrowSamples
from dflash_trainer.data.plan import PlannedBatch


@dataclass(frozen=True)
class Batch:
    """Input of a target worker; its shape depends only on the bucket."""

    planned: PlannedBatch
    input_ids_BL: Tensor
    """int64; 0 in padding."""
    loss_mask_BL: Tensor
    """int64; 1 on supervised tokens, 0 in padding and in rows of unusable samples."""
    lengths_B: Tensor
    """int64; 1 for an empty row, whose single token is not supervised."""
    tokens: int
    """Number of tokens that are not padding."""
    unusable: tuple[int, ...]
    """Ids of the skipped samples."""


def read_batch(samples: ArrowSamples, planned: PlannedBatch, *, rows: int, vocab_size: int) -> Batch:
    """Read the samples of a planned batch and pad them to [rows, bucket].

    A sample without two adjacent supervised tokens, or with ids outside the vocabulary, is skipped.
    """
    ids = np.zeros((rows, planned.bucket), np.int64)
    mask = np.zeros((rows, planned.bucket), np.int64)
    lengths = np.ones(rows, np.int64)
    tokens, unusable = 0, []
    for row, sample_id in enumerate(planned.sample_ids):
        stored = samples[sample_id]
        sample_ids = stored.input_ids[: planned.bucket]
        sample_mask = stored.loss_mask[: planned.bucket] != 0
        if not _usable(sample_ids, sample_mask, vocab_size):
            unusable.append(sample_id)
            continue
        length = len(sample_ids)
        ids[row, :length], mask[row, :length], lengths[row] = sample_ids, sample_mask, length
        tokens += length
    return Batch(
        planned=planned,
        input_ids_BL=torch.from_numpy(ids),
        loss_mask_BL=torch.from_numpy(mask),
        lengths_B=torch.from_numpy(lengths),
        tokens=tokens,
        unusable=tuple(unusable),
    )


def _usable(ids: np.ndarray, mask: np.ndarray, vocab_size: int) -> bool:
    if len(ids) < 2 or not (mask[1:] & mask[:-1]).any():
        return False
    return bool(ids.min() >= 0 and ids.max() < vocab_size)
