"""SIGTERM and SIGINT: leave after the step at work, or at once while nothing has been trained yet."""

from __future__ import annotations

import os
import signal
from types import FrameType, TracebackType


class StopRequested(BaseException):
    """The operator asked to stop before training began; nothing is lost.

    No Exception: a library that catches those (a compiler, a loader of weights) would make another failure of it.
    """


_installed: list[StopSignals] = []


def stop_was_requested() -> bool:
    """Tell whether a signal asked this process to stop."""
    return any(owner.asked for owner in _installed)


class StopSignals:
    """Owns both signals from install() on, or inside its `with`. `asked` is the first signal's name, or empty."""

    def __init__(self) -> None:
        self.asked = ""
        self._at_once = True
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
        """Take both signals; a process that ends with its run never gives them back."""
        _installed.append(self)
        for number in (signal.SIGTERM, signal.SIGINT):
            self._before[number] = signal.signal(number, self._on_signal)

    def finish_steps(self) -> None:
        """From here on a signal waits for the end of the step. Raises StopRequested when one came before."""
        self._at_once = False
        if self.asked:
            raise StopRequested(self.asked)
        self._training = True

    @property
    def before_training(self) -> bool:
        """A stop was asked for, and nothing had been trained yet."""
        return bool(self.asked) and not self._training

    def leaving(self) -> None:
        """The run is being closed: another signal interrupts nothing."""
        self._at_once = False

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        self.asked = self.asked or signal.Signals(number).name
        _say(f"{signal.Signals(number).name}: " + ("stopping" if self._at_once else "saving, then stopping"))
        if self._at_once:
            raise StopRequested(self.asked)


def _say(line: str) -> None:
    """Past Python's buffers: a handler may run in the middle of a print, and a second one inside it is an error."""
    try:
        os.write(1, f"{line}\n".encode())
    except OSError:
        return
