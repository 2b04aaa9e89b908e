"""Where the run is: `state.json` for machines, `phase NAME: DETAIL` lines for people."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Literal

from dflash_trainer.files import write_json

Phase = Literal[
    "imports",
    "dataset",
    "target_weights",
    "compile",
    "first_steps",  # in the place of compile, where nothing is compiled
    "training",
    "evaluating",
    "saving",
    "finished",
    "stopped",
    "failed",
]
_BEFORE_TRAINING = ("imports", "dataset", "target_weights", "compile", "first_steps")
_SECONDS_BETWEEN = 0.5


class RunState:
    """Keeps `state.json` of a run current; without a folder it only prints."""

    def __init__(self, folder: Path | None) -> None:
        self._file = folder / "state.json" if folder else None
        self._written = 0.0
        self._phase: Phase = "imports"
        self.step = 0
        self.total_steps = 0  # known from the first step on, and kept in every later phase
        self._came_to: dict[str, str] = {}  # last detail of each phase before the training, for whoever looks seldom

    def enter(self, phase: Phase, detail: str, *, done: int = 0, total: int = 0) -> None:
        """A new phase: printed, and written at once."""
        self._phase = phase
        print(f"phase {phase}: {detail}", flush=True)
        self._write(detail, done, total)

    def found(self, detail: str) -> None:
        """What a phase came to: printed, and written at once."""
        print(f"{self._phase}: {detail}", flush=True)
        self._write(detail, 0, 0)

    def advance(self, detail: str, *, done: int, total: int) -> None:
        """Progress within the phase; written at most twice a second."""
        self._keep(detail)
        if time.monotonic() - self._written >= _SECONDS_BETWEEN:
            self._write(detail, done, total)

    def line(self, text: str) -> None:
        """A line of progress whose end cannot be counted: printed, and kept as the detail."""
        print(text, flush=True)
        self.advance(text, done=0, total=0)

    def _keep(self, detail: str) -> None:
        if self._phase in _BEFORE_TRAINING:
            self._came_to[self._phase] = detail

    def _write(self, detail: str, done: int, total: int) -> None:
        self._keep(detail)
        if self._file is None:
            return
        self._written = time.monotonic()
        state = {
            "phase": self._phase,
            "detail": detail,
            "done": done,
            "total": total,
            "step": self.step,
            "total_steps": self.total_steps,
            "pid": os.getpid(),
            "updated_at": time.time(),
            "phases": list(self._came_to.items()),
        }
        try:
            write_json(self._file, state, sync=False)
        except OSError as error:
            print(f"state.json not written: {error}", flush=True)
