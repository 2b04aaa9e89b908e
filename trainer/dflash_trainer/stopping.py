"""SIGTERM and SIGINT: leave after the step at work, or at once while nothing has been trained yet."""

from __future__ import annotations

import signal
from types import FrameType, TracebackType


class StopRequested(Exception):
    """The operator asked to stop before training began; nothing is lost."""


class StopSignals:
    """Owns both signals inside its `with`. `asked` is the first signal's name, or empty."""

    def __init__(self) -> None:
        self.asked = ""
        self._at_once = True
        self._before: dict[int, object] = {}

    def __enter__(self) -> StopSignals:
        for number in (signal.SIGTERM, signal.SIGINT):
            self._before[number] = signal.signal(number, self._on_signal)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)  # type: ignore[arg-type]

    def finish_steps(self) -> None:
        """From here on a signal waits for the end of the step. Raises StopRequested when one came before."""
        self._at_once = False
        if self.asked:
            raise StopRequested(self.asked)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        self.asked = self.asked or signal.Signals(number).name
        print(
            f"{signal.Signals(number).name}: " + ("stopping" if self._at_once else "saving, then stopping"), flush=True
        )
        if self._at_once:
            raise StopRequested(self.asked)
