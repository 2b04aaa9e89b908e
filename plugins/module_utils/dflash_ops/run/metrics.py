"""Metrics of a run: one JSON object a step in metrics.jsonl, which the trainer may be writing while it is read."""

from __future__ import annotations

import dataclasses
import json
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ..core import files

WINDOW = 10  # steps over which the speed is measured
PACE_WINDOW = 50  # steps from whose pace the remaining time is estimated
READ_LIMIT = 64 << 20  # bytes


def read_metrics(path: Path, *, limit: int = READ_LIMIT) -> list[dict[str, Any]]:
    """Return the steps in `path`, oldest first; a torn first or last line is skipped."""
    rows = []
    for line in files.read_tail(path, limit).splitlines():
        try:
            row = json.loads(line)
        except ValueError:
            continue
        if isinstance(row, dict) and isinstance(row.get("step"), int):
            rows.append(row)
    return rows


def numbers(rows: Sequence[dict[str, Any]], key: str) -> list[float]:
    """Return the values of `key` that are numbers."""
    return [
        float(row[key]) for row in rows if isinstance(row.get(key), (int, float)) and not isinstance(row[key], bool)
    ]


@dataclasses.dataclass(frozen=True)
class Speed:
    """Tokens a second: the median over the last steps and the best median over any window of the same length."""

    now: float | None
    best: float | None
    steps: int


def speed(rows: Sequence[dict[str, Any]], *, window: int = WINDOW) -> Speed:
    """Return the median speed of the last `window` steps and the best of any `window` consecutive steps."""
    values = numbers(rows, "tok_s")
    if not values:
        return Speed(now=None, best=None, steps=0)
    last = statistics.median(values[-window:])
    best = max((statistics.median(values[i - window : i]) for i in range(window, len(values) + 1)), default=last)
    return Speed(now=round(last, 1), best=round(best, 1), steps=len(values))


def allocator_flat(rows: Sequence[dict[str, Any]], *, window: int = WINDOW) -> bool | None:
    """Return whether device allocations and frees stayed constant over the last steps; None without GPU counters."""
    counts = [
        [(gpu.get("device_allocations"), gpu.get("device_frees")) for gpu in row["gpus"]]
        for row in rows[-window:]
        if isinstance(row.get("gpus"), list) and row["gpus"]
    ]
    return all(count == counts[0] for count in counts) if len(counts) > 1 else None


def step_seconds(rows: Sequence[dict[str, Any]], *, window: int = WINDOW) -> float | None:
    """Return the median time between the last steps in seconds."""
    times = numbers(rows[-window - 1 :], "time")
    gaps = [later - earlier for earlier, later in zip(times, times[1:]) if later > earlier]
    return statistics.median(gaps) if gaps else None


def seconds_left(rows: Sequence[dict[str, Any]], total: int | None, *, now: float) -> float | None:
    """Return the seconds to step `total` at the pace of the last steps, including checkpoints and evaluations."""
    timed = [row for row in rows[-PACE_WINDOW:] if isinstance(row.get("time"), (int, float))]
    if total is None or len(timed) < 2 or timed[-1]["step"] <= timed[0]["step"]:
        return None
    pace = (timed[-1]["time"] - timed[0]["time"]) / (timed[-1]["step"] - timed[0]["step"])
    return float(max(0.0, pace * (total - timed[-1]["step"]) - max(0.0, now - timed[-1]["time"])))
