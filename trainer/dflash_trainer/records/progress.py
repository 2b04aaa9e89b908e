"""Progress of long work as plain lines: bar, count and time left."""

from __future__ import annotations

import time
from types import TracebackType


def duration(seconds: float) -> str:
    """Return `42 s`, `3 m 05 s`, `2 h 07 m` or `3 d 04 h`."""
    whole = int(seconds)
    if whole < 60:
        return f"{whole} s"
    for unit, small, size in (("m", "s", 60), ("h", "m", 3600)):
        if whole < size * 60 or (unit == "h" and whole < 86400):
            return f"{whole // size} {unit} {whole % size // (size // 60):02d} {small}"
    return f"{whole // 86400} d {whole % 86400 // 3600:02d} h"


class Progress:
    """Prints `name [####......] 40/100 3 s, 5 s left` at most once a second, and at the end."""

    def __init__(self, name: str, total: int) -> None:
        self.name = name
        self.total = total
        self.done = 0
        self._started = time.monotonic()
        self._printed = 0.0

    def __enter__(self) -> Progress:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.done < self.total or kind:
            self._print()

    def advance(self, count: int) -> None:
        """Count finished items."""
        self.done += count
        now = time.monotonic()
        if self.done >= self.total or now - self._printed >= 1:
            self._printed = now
            self._print()

    def _print(self) -> None:
        elapsed = time.monotonic() - self._started
        part = self.done / self.total if self.total else 1.0
        bar = "#" * int(part * 20)
        left = f", {duration(elapsed / part - elapsed)} left" if 0 < part < 1 else ""
        print(f"{self.name} [{bar:.<20}] {self.done}/{self.total} {duration(elapsed)}{left}", flush=True)
