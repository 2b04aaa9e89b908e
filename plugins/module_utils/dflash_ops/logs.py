"""A run's log, in bounded pieces."""

from __future__ import annotations

import time
from typing import Any

from . import files, metrics, runs
from .errors import OpsError
from .paths import Layout

LIMIT = 1 << 20  # bytes read at once


def last(layout: Layout, run_id: str, *, lines: int, since: float) -> dict[str, Any]:
    """Return the last `lines` lines, and where to go on; nothing when the log is older than `since` seconds.

    Raises:
        OpsError: there is no such run, or `lines` is no useful number.
    """
    if lines < 0:
        raise OpsError(f"lines is {lines}.", remedy="use 0 or more")
    run = runs.need(layout, run_id)
    size = run.log.stat().st_size if run.log.exists() else 0
    text = files.read_tail(run.log, LIMIT)
    found = _since(run, text.splitlines(), since) if since > 0 else text.splitlines()
    return {"run_id": run.run_id, "log": str(run.log), "lines": found[-lines:] if lines else [], "offset": size}


def _since(run: runs.Run, lines: list[str], seconds: float) -> list[str]:
    """Keep the lines of the last `seconds`; lines carry no time, so the metrics say which step was logged when."""
    start = time.time() - seconds
    try:
        if run.log.stat().st_mtime < start:
            return []
    except OSError:
        return []
    earlier = [row["step"] for row in metrics.read_metrics(run.metrics) if float(row.get("time") or 0) < start]
    if not earlier:
        return lines
    mark = f"step {earlier[-1]}/"
    at = next((place for place, line in enumerate(lines) if line.startswith(mark)), -1)
    return lines[at + 1 :]


def after(layout: Layout, run_id: str, *, offset: int, wait: float) -> dict[str, Any]:
    """Return the whole lines behind byte `offset`, waiting up to `wait` seconds for one."""
    run = runs.need(layout, run_id)
    deadline = time.monotonic() + wait
    while True:
        data = _read(run, offset)
        if b"\n" in data or time.monotonic() >= deadline:
            break
        time.sleep(0.2)
    whole = data[: data.rfind(b"\n") + 1]
    return {
        "run_id": run.run_id,
        "log": str(run.log),
        "offset": offset + len(whole),
        "lines": whole.decode(errors="replace").splitlines(),
    }


def _read(run: runs.Run, offset: int) -> bytes:
    try:
        with run.log.open("rb") as stream:
            stream.seek(offset)
            return stream.read(LIMIT)
    except OSError:
        return b""
