"""Batches, busy time and host time of one worker since the start."""

from __future__ import annotations

from typing import NamedTuple


class WorkerUse(NamedTuple):
    """Totals since the start; subtract two of them to get an interval."""

    batches: int = 0
    busy_seconds: float = 0.0
    """Target: from taking a batch until its device is done. Drafter: all time except waiting for a batch, including
    the optimizer step and waiting for other drafters."""
    host_seconds: float = 0.0
    """Part of the busy time spent in Python launching forward and backward passes (under the GIL)."""

    def plus(self, *, busy: float, host: float) -> WorkerUse:
        """Return the totals with one more batch."""
        return WorkerUse(self.batches + 1, self.busy_seconds + busy, self.host_seconds + host)
