"""Lines of a run's log."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dflash_ops.monitor import logs


def logs_screen(part: Mapping[str, Any]) -> list[str]:
    """Return the lines, after a note about those of the requested time that are missing."""
    notes = []
    if part.get("truncated"):
        notes.append(f"... only the last {logs.LIMIT >> 20} MiB of that time is shown; {part['log']} has all of it")
    if part.get("omitted"):
        notes.append(f"... {part['omitted']} earlier lines of that time are not shown; -e lines=N shows N lines")
    return [*notes, *part["lines"]]
