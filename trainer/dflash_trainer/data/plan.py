"""Assignment of samples to batches: a pure function of sample lengths, buckets, seed and epoch.

Batches are numbered from 0 across all epochs, so a resumed run needs only the number of the next batch. Every sample
is in exactly one batch per epoch; the last batch of a bucket may have empty rows.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dflash_trainer.config.schema import DataConfig


@dataclass(frozen=True)
class PlannedBatch:
    """One batch before its tokens are read."""

    number: int
    epoch: int
    bucket: int
    sample_ids: tuple[int, ...]


class BatchPlan:
    """Endless sequence of batches over a dataset with the given sample lengths."""

    def __init__(self, lengths: np.ndarray, data: DataConfig, *, shuffle: bool = True) -> None:
        self._data = data
        self._shuffle = shuffle
        self._bucket_of = np.searchsorted(np.array(data.buckets), np.minimum(lengths, data.buckets[-1]))
        counts = np.bincount(self._bucket_of, minlength=len(data.buckets))
        sizes = [data.batch_size(bucket) for bucket in data.buckets]
        self.batches_per_epoch = sum(-(-int(n) // size) for n, size in zip(counts, sizes, strict=True))
        self._epoch = -1
        self._batches: list[tuple[int, tuple[int, ...]]] = []

    def batch(self, number: int) -> PlannedBatch:
        """Return batch `number`; cheap when called in ascending order."""
        epoch, index = divmod(number, self.batches_per_epoch)
        if epoch != self._epoch:
            self._batches, self._epoch = self._plan_epoch(epoch), epoch
        bucket, ids = self._batches[index]
        return PlannedBatch(number, epoch, bucket, ids)

    def _plan_epoch(self, epoch: int) -> list[tuple[int, tuple[int, ...]]]:
        """Shuffle the samples, fill the batches of each bucket in that order, then shuffle the batches."""
        random = np.random.Generator(np.random.PCG64([self._data.seed, epoch]))
        count = len(self._bucket_of)
        order = random.permutation(count) if self._shuffle else np.arange(count)
        batches = []
        for index, bucket in enumerate(self._data.buckets):
            members = order[self._bucket_of[order] == index]
            size = self._data.batch_size(bucket)
            batches += [(bucket, tuple(members[i : i + size].tolist())) for i in range(0, len(members), size)]
        return [batches[i] for i in random.permutation(len(batches))] if self._shuffle else batches
