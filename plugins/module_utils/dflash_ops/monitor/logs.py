"""A run's log, in bounded pieces."""

from __future__ import annotations

import calendar
import re
import time
from typing import Any

from ..core import files
from ..core.errors import OpsError
from ..core.paths import Layout
from ..run import metrics, runs

LIMIT = 1 << 20  # bytes read at once
USUAL = 50  # lines
ALL = -1
STAMP = re.compile(r"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ) ")  # as start_training.sh writes it


def last(layout: Layout, run_id: str, *, lines: int = ALL, since: float = 0.0) -> dict[str, Any]:
    """Return the last lines, and where to go on.

    Args:
        layout: the box.
        run_id: which run; empty for the current one.
        lines: how many; ALL: the usual number, or all that `since` asks for.
        since: only what was written in the last so many seconds; 0: at any time.

    Raises:
        OpsError: there is no such run, or `lines` is no useful number.
    """
    if lines < ALL:
        raise OpsError(f"lines is {lines}.", remedy="use 0 or more")
    run = runs.require(layout, run_id)
    size = run.log.stat().st_size if run.log.exists() else 0
    text = files.read_tail(run.log, LIMIT).splitlines()[size > LIMIT :]  # without the line that the limit tore
    found = _since(run, text, since) if since > 0 else text
    wanted = lines if lines != ALL else len(found) if since > 0 else USUAL
    kept = found[-wanted:] if wanted else []
    return {
        "run_id": run.run_id,
        "log": str(run.log),
        "lines": kept,
        "left_out": len(found) - len(kept) if since > 0 else 0,
        "cut": since > 0 and size > LIMIT and len(found) == len(text),
        "offset": size,
    }


def written_at(line: str) -> float | None:
    """Return when a line of the log was written (epoch seconds); None for one without a time."""
    found = STAMP.match(line)
    return float(calendar.timegm(time.strptime(found.group(1), "%Y-%m-%dT%H:%M:%SZ"))) if found else None


def _since(run: runs.Run, lines: list[str], seconds: float) -> list[str]:
    """Keep the lines of the last `seconds`."""
    start = time.time() - seconds
    times = [written_at(line) for line in lines]
    if not any(times):
        return _since_by_steps(run, lines, start)
    first = next((place for place, at in enumerate(times) if at is not None and at + 1 > start), len(lines))
    return lines[first:]


def _since_by_steps(run: runs.Run, lines: list[str], start: float) -> list[str]:
    """Keep what follows the last step before `start`: the metrics say when a step was logged, older logs do not."""
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
    run = runs.require(layout, run_id)
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
