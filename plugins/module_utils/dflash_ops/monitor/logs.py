"""Parts of a run's log, each at most LIMIT bytes."""

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
DEFAULT_LINES = 50
ALL = -1
STAMP = re.compile(r"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ) ")  # as start_training.sh writes it


def last(layout: Layout, run_id: str, *, lines: int = ALL, since: float = 0.0) -> dict[str, Any]:
    """Return the last lines of a log, and the offset from which `after` continues.

    Args:
        layout: the box.
        run_id: the run; empty for the current one.
        lines: number of lines; ALL: DEFAULT_LINES, or with `since` every line of that time.
        since: only lines of the last so many seconds; 0: no limit.

    Raises:
        OpsError: the run does not exist, or `lines` is negative.
    """
    if lines < ALL:
        raise OpsError(f"lines is {lines}.", remedy="use 0 or more")
    run = runs.require(layout, run_id)
    size = run.log.stat().st_size if run.log.exists() else 0
    text = files.read_tail(run.log, LIMIT).splitlines()[size > LIMIT :]  # without the partial first line
    found = _since(run, text, since) if since > 0 else text
    count = lines if lines != ALL else len(found) if since > 0 else DEFAULT_LINES
    kept = found[-count:] if count else []
    return {
        "run_id": run.run_id,
        "log": str(run.log),
        "lines": kept,
        "omitted": len(found) - len(kept) if since > 0 else 0,
        "truncated": since > 0 and size > LIMIT and len(found) == len(text),
        "offset": size,
    }


def written_at(line: str) -> float | None:
    """Return the time of a log line (epoch seconds); None for a line without one."""
    found = STAMP.match(line)
    return float(calendar.timegm(time.strptime(found.group(1), "%Y-%m-%dT%H:%M:%SZ"))) if found else None


def _since(run: runs.Run, lines: list[str], seconds: float) -> list[str]:
    """Return the lines of the last `seconds`."""
    start = time.time() - seconds
    times = [written_at(line) for line in lines]
    if not any(times):
        return _since_by_steps(run, lines, start)
    first = next((index for index, at in enumerate(times) if at is not None and at + 1 > start), len(lines))
    return lines[first:]


def _since_by_steps(run: runs.Run, lines: list[str], start: float) -> list[str]:
    """Return the lines after the last step before `start`, for logs of older versions without a time in each line."""
    try:
        if run.log.stat().st_mtime < start:
            return []
    except OSError:
        return []
    earlier = [row["step"] for row in metrics.read_metrics(run.metrics) if float(row.get("time") or 0) < start]
    if not earlier:
        return lines
    mark = f"step {earlier[-1]}/"
    index = next((index for index, line in enumerate(lines) if line.startswith(mark)), -1)
    return lines[index + 1 :]


def after(layout: Layout, run_id: str, *, offset: int, wait: float) -> dict[str, Any]:
    """Return the complete lines after byte `offset`; wait up to `wait` seconds for the first one."""
    run = runs.require(layout, run_id)
    deadline = time.monotonic() + wait
    while True:
        data = _read(run, offset)
        if b"\n" in data or time.monotonic() >= deadline:
            break
        time.sleep(0.2)
    complete = data[: data.rfind(b"\n") + 1]
    return {
        "run_id": run.run_id,
        "log": str(run.log),
        "offset": offset + len(complete),
        "lines": complete.decode(errors="replace").splitlines(),
    }


def _read(run: runs.Run, offset: int) -> bytes:
    try:
        with run.log.open("rb") as stream:
            stream.seek(offset)
            return stream.read(LIMIT)
    except OSError:
        return b""
