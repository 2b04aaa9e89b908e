"""Heartbeat for work that reports no progress, such as a library that reads a file of many gigabytes."""

from __future__ import annotations

import threading
import time
from types import TracebackType

from dflash_trainer.records.phase import RunState

EVERY_SECONDS = 5.0


class Heartbeat:
    """Context manager that writes `TEXT, N s` to the state every few seconds, until end() or the end of the block."""

    def __init__(self, state: RunState, text: str, *, every: float = EVERY_SECONDS) -> None:
        self._state = state
        self._text = text
        self._every = every
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._beat, name="heartbeat", daemon=True)

    def __enter__(self) -> Heartbeat:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.end()

    def end(self) -> None:
        """Stop the heartbeat: the work reports progress now, or is done."""
        if not self._over.is_set():
            self._over.set()
            self._thread.join()

    def _beat(self) -> None:
        started = time.monotonic()
        while not self._over.wait(self._every):
            self._state.advance(f"{self._text}, {time.monotonic() - started:.0f} s", done=0, total=0)
