"""Activity of a box for the status screen: the run, running jobs, the lock holder and the best known speed."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from ..core import files, jobs, operator_lock
from ..core.errors import OpsError
from ..core.paths import Layout
from ..history import known_good
from ..monitor import rules, status
from ..run import metrics, runs

EARLIER_RUNS = 5  # number of runs of the same configuration whose metrics are read
SEARCHED_RUNS = 30  # number of records searched for such runs
METRICS_BYTES = 1 << 20
SAME_KEYS = ("config_file", "overrides", "hardware", "gpus")


def snapshot(layout: Layout, *, run_id: str = "", stall_seconds: float = rules.STALL_SECONDS) -> dict[str, Any]:
    """Return the status of the run with the running jobs, the lock holder and the best known speed."""
    answer = status.snapshot(layout, run_id=run_id, stall_seconds=stall_seconds)
    known = best_known(layout, answer["run_id"]) if answer["run_id"] else None
    return {**answer, "jobs": running_jobs(layout), "held_by": lock_holder(layout), "best_known": known}


def running_jobs(layout: Layout) -> list[dict[str, Any]]:
    """Return the running jobs of this box: builds, prewarms, stops."""
    names = [folder.name for folder in sorted(layout.jobs.glob("*")) if jobs.state_of(folder) == "running"]
    return [_job(layout, name) for name in names]


def _job(layout: Layout, name: str) -> dict[str, Any]:
    found = jobs.snapshot(layout, name)
    record = files.read_json(layout.job(name) / "job.json") or {}
    return {
        "job_id": name,
        "title": str(record.get("title") or ""),
        "seconds": round(found.elapsed),
        "line": str(found.progress.get("line") or ""),
    }


def lock_holder(layout: Layout) -> dict[str, Any] | None:
    """Return the holder of the operator lock; None when the lock is free, expired or its process has ended."""
    held = operator_lock.read(layout)
    if held is None or held["expires_at"] <= time.time() or operator_lock.is_dead_locally(held):
        return None
    return {
        **{key: held[key] for key in ("operator", "host", "pid", "operation", "since")},
        "seconds": round(time.time() - held["since"]),
    }


def best_known(layout: Layout, run_id: str) -> dict[str, Any] | None:
    """Return the best speed of other runs of the same configuration on the same hardware, with the run's id."""
    run = runs.load_or_none(layout, run_id)
    if run is None:
        return None
    try:
        bad, entries = known_good.read(layout)["bad"], known_good.good_entries(layout)
    except OpsError:  # a damaged file is reported by the commands that need it
        bad, entries = [], []
    good = [entry for entry in entries if _same(entry, run)]
    found = [(entry["run_id"], dict(entry.get("speed") or {}).get("best_tok_s")) for entry in good]
    found += [(earlier.run_id, _best(earlier)) for earlier in _earlier(layout, run, bad)]
    others = [(float(speed), name) for name, speed in found if speed and name != run_id]
    if not others:
        return None
    speed, name = max(others)
    return {"tok_s": speed, "run_id": name}


def _same(record: Mapping[str, Any], run: runs.Run) -> bool:
    return all(record.get(key) == run.record.get(key) for key in SAME_KEYS)


def _earlier(layout: Layout, run: runs.Run, bad: list[str]) -> list[runs.Run]:
    """Return the newest earlier runs of the same configuration."""
    names = [name for name in runs.run_ids(layout) if name < run.run_id and name not in bad]
    candidates = (runs.load_or_none(layout, name) for name in reversed(names[-SEARCHED_RUNS:]))
    return [other for other in candidates if other is not None and _same(other.record, run)][:EARLIER_RUNS]


def _best(run: runs.Run) -> float | None:
    rows = metrics.read_metrics(run.metrics, limit=METRICS_BYTES)
    return metrics.speed(rows, window=runs.speed_window(run)).best
