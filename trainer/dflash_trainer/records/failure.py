"""Report of a failed run: `failure.json` and the last lines of the log."""

from __future__ import annotations

import traceback
from pathlib import Path

from dflash_trainer.errors import TrainerError
from dflash_trainer.files import write_json


def report_failure(error: TrainerError, folder: Path) -> None:
    """Print the cause's traceback, then name, message and remedy; write failure.json."""
    if error.__cause__ is not None:
        print(_trace(error), flush=True)
    print(f"failed: {error.name}: {error.message}", flush=True)
    if error.remedy:
        print(f"remedy: {error.remedy}", flush=True)
    write_failure(error, folder)


def write_failure(error: TrainerError, folder: Path) -> None:
    """Write failure.json; a full disk is only reported."""
    record = {"name": error.name, "message": error.message, "remedy": error.remedy, "traceback": _trace(error)}
    try:
        write_json(folder / "failure.json", record)
    except OSError as problem:
        print(f"failure.json not written: {problem}", flush=True)


def _trace(error: TrainerError) -> str:
    return "".join(traceback.format_exception(error.__cause__ or error))
