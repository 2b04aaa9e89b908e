"""SIGTERM and SIGINT: stop after the running step, or immediately before training has started."""

from __future__ import annotations

import os
import signal
from types import FrameType, TracebackType


class StopRequested(BaseException):
    """A stop was requested before training began; nothing is lost.

    Not an Exception subclass, so that libraries that catch Exception (compilers, weight loaders) do not swallow it.
    """


_installed: list[StopSignals] = []


def stop_was_requested() -> bool:
    """Return True when a signal has requested a stop of this process."""
    return any(owner.requested for owner in _installed)


class StopSignals:
    """Handlers of both signals, from install() or inside a `with` block.

    `requested` is the name of the first signal received, or empty.
    """

    def __init__(self) -> None:
        self.requested = ""
        self._immediate = True
        self._training = False
        self._before: dict[int, object] = {}

    def __enter__(self) -> StopSignals:
        self.install()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)  # type: ignore[arg-type]

    def install(self) -> None:
        """Install both handlers; a process that ends with its run never restores the old ones."""
        _installed.append(self)
        for number in (signal.SIGTERM, signal.SIGINT):
            self._before[number] = signal.signal(number, self._on_signal)

    def finish_steps(self) -> None:
        """Let later signals wait for the end of the step. Raises StopRequested when one was received before."""
        self._immediate = False
        if self.requested:
            raise StopRequested(self.requested)
        self._training = True

    @property
    def before_training(self) -> bool:
        """True when a stop was requested before training started."""
        return bool(self.requested) and not self._training

    def ignore(self) -> None:
        """Ignore further signals: the run is closing."""
        self._immediate = False

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        self.requested = self.requested or signal.Signals(number).name
        _say(f"{signal.Signals(number).name}: " + ("stopping" if self._immediate else "saving, then stopping"))
        if self._immediate:
            raise StopRequested(self.requested)


def _say(line: str) -> None:
    """Write without Python's buffers: the handler may run inside a print, which is not re-entrant."""
    try:
        os.write(1, f"{line}\n".encode())
    except OSError:
        return
