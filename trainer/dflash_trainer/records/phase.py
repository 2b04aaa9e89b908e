"""Phase of the run: `state.json` for programs, `phase NAME: DETAIL` lines in the log."""

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
    "first_steps",  # instead of compile, when nothing is compiled
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
    """Writer of `state.json`; without a folder it only prints."""

    def __init__(self, folder: Path | None) -> None:
        self._file = folder / "state.json" if folder else None
        self._written = 0.0
        self._phase: Phase = "imports"
        self.step = 0
        self.total_steps = 0  # set by the first step and kept in later phases
        self._results: dict[str, str] = {}  # last detail of each phase before training

    def enter(self, phase: Phase, detail: str, *, done: int = 0, total: int = 0) -> None:
        """Enter a phase: print it and write it immediately."""
        self._phase = phase
        print(f"phase {phase}: {detail}", flush=True)
        self._write(detail, done, total)

    def found(self, detail: str) -> None:
        """Report the result of the phase: print it and write it immediately."""
        print(f"{self._phase}: {detail}", flush=True)
        self._write(detail, 0, 0)

    def advance(self, detail: str, *, done: int, total: int) -> None:
        """Report progress within the phase; written at most twice a second."""
        self._keep(detail)
        if time.monotonic() - self._written >= _SECONDS_BETWEEN:
            self._write(detail, done, total)

    def line(self, text: str) -> None:
        """Print a line of progress without a known total and use it as the detail."""
        print(text, flush=True)
        self.advance(text, done=0, total=0)

    def _keep(self, detail: str) -> None:
        if self._phase in _BEFORE_TRAINING:
            self._results[self._phase] = detail

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
            "phases": list(self._results.items()),
        }
        try:
            write_json(self._file, state, sync=False)
        except OSError as error:
            print(f"state.json not written: {error}", flush=True)
