"""What one worker has done since the start: its share of the time, and how much of that Python took."""

from __future__ import annotations

from typing import NamedTuple


class WorkerUse(NamedTuple):
    """Totals; differences of two of them are a stretch of time."""

    batches: int = 0
    busy_seconds: float = 0.0
    """A target: from taking a batch until its device is done. A drafter: all time but that of waiting for a batch, so
    the optimizer's step and the wait for other drafters count."""
    host_seconds: float = 0.0
    """Of these, launching forward and backward: Python, which runs one thread at a time."""

    def plus(self, *, busy: float, host: float) -> WorkerUse:
        """One batch more."""
        return WorkerUse(self.batches + 1, self.busy_seconds + busy, self.host_seconds + host)
