"""What the status screen tells beside the run itself: jobs at work, who holds the box, and the best speed known."""

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

EARLIER_RUNS = 5  # of the same configuration, whose metrics are read
LOOKED_AT = 30  # runs at most, whose records are read for that
METRICS_BYTES = 1 << 20
SAME = ("config_file", "overrides", "hardware", "gpus")


def look(layout: Layout, *, run_id: str = "", stall_seconds: float = rules.STALL_SECONDS) -> dict[str, Any]:
    """Return the status of the run, with what is at work beside it."""
    answer = status.snapshot(layout, run_id=run_id, stall_seconds=stall_seconds)
    known = best_known(layout, answer["run_id"]) if answer["run_id"] else None
    return {**answer, "jobs": at_work(layout), "held_by": holder(layout), "best_known": known}


def at_work(layout: Layout) -> list[dict[str, Any]]:
    """Return the jobs that run on this box: builds, prewarms, stops."""
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


def holder(layout: Layout) -> dict[str, Any] | None:
    """Return who works on this box with a playbook that changes something; None when nobody does any more."""
    held = operator_lock.read(layout)
    if held is None or held["expires_at"] <= time.time() or operator_lock.is_dead_here(held):
        return None
    return {
        **{key: held[key] for key in ("operator", "host", "pid", "operation", "since")},
        "seconds": round(time.time() - held["since"]),
    }


def best_known(layout: Layout, run_id: str) -> dict[str, Any] | None:
    """Return the best speed of other runs of the same configuration on the same hardware, and whose it was."""
    run = runs.readable(layout, run_id)
    if run is None:
        return None
    try:
        bad, entries = known_good.read(layout)["bad"], known_good.good_entries(layout)
    except OpsError:  # damaged: told where it is needed
        bad, entries = [], []
    good = [entry for entry in entries if _same(entry, run)]
    found = [(entry["run_id"], dict(entry.get("speed") or {}).get("best_tok_s")) for entry in good]
    found += [(one.run_id, _best(one)) for one in _earlier(layout, run, bad)]
    others = [(float(speed), name) for name, speed in found if speed and name != run_id]
    if not others:
        return None
    speed, name = max(others)
    return {"tok_s": speed, "run_id": name}


def _same(record: Mapping[str, Any], run: runs.Run) -> bool:
    return all(record.get(key) == run.record.get(key) for key in SAME)


def _earlier(layout: Layout, run: runs.Run, bad: list[str]) -> list[runs.Run]:
    """Return the newest earlier runs of the same configuration."""
    names = [name for name in runs.run_ids(layout) if name < run.run_id and name not in bad]
    looked = (runs.readable(layout, name) for name in reversed(names[-LOOKED_AT:]))
    return [one for one in looked if one is not None and _same(one.record, run)][:EARLIER_RUNS]


def _best(run: runs.Run) -> float | None:
    rows = metrics.read_metrics(run.metrics, limit=METRICS_BYTES)
    return metrics.speed(rows, window=runs.speed_window(run)).best
