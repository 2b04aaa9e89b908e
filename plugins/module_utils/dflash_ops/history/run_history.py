"""List of the runs of a box, and the report of one run."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from ..core import durations, files
from ..core.paths import Layout
from ..monitor import rules, status, verdict
from ..run import checkpoints, metrics, runs
from . import comparison, known_good

CURVE_POINTS = 20
EVALUATED = ("step", "eval_loss", "eval_accept_len")


def row_of(run: runs.Run, *, current: str, good: str, bad: Sequence[str]) -> dict[str, Any]:
    """Return the row of one run.

    Args:
        run: the run.
        current: id of the current run.
        good: id of the known-good run.
        bad: ids of the runs marked bad.
    """
    state = verdict.read(run, grace=0.0)
    ended = run.read("exit.json")
    speed = comparison.speed_of(run)
    started = float(run.record.get("started_at") or 0)
    end = float(ended.get("finished_at") or (time.time() if state.state in rules.LIVE else verdict.last_sign(run)))
    marks = {"current": run.run_id == current, "known-good": run.run_id == good, "bad": run.run_id in bad}
    return {
        "run_id": run.run_id,
        "label": run.record.get("label"),
        "started_at": durations.format_timestamp(started),
        "seconds": round(max(0.0, end - started)),
        "state": state.state,
        "detail": state.detail,
        "step": speed["step"],
        "steps": speed["steps"],
        "best_tok_s": speed["best_tok_s"],
        "loss": speed["loss"],
        "accept_len": speed["accept_len"],
        "env_id": run.record.get("env_id"),
        "release_id": run.record.get("release_id"),
        "marks": [name for name, applies in marks.items() if applies],
    }


def listing(layout: Layout, *, last: int = 0) -> list[dict[str, Any]]:
    """Return the runs, oldest first; only the newest `last` ones unless it is 0."""
    current = runs.current(layout)
    good = known_good.latest(layout) or {}
    bad = known_good.read(layout)["bad"]
    listed = [run for run_id in runs.run_ids(layout)[-last:] if (run := runs.load_or_none(layout, run_id))]
    return [
        row_of(run, current=current.run_id if current else "", good=good.get("run_id", ""), bad=bad) for run in listed
    ]


def report(layout: Layout, run: runs.Run) -> dict[str, Any]:
    """Return the record, metrics, checkpoints, problems and last log lines of a run."""
    rows = metrics.read_metrics(run.metrics)
    answer = status.snapshot(layout, run_id=run.run_id, query_gpus=False)
    stride = max(1, -(-len(rows) // CURVE_POINTS))
    curve = rows[::stride] + (rows[-1:] if rows and (len(rows) - 1) % stride else [])
    keys = ("step", "loss", "accept_len", "tok_s", "lr", "grad_norm", "queue_depth")
    return {
        "ok": answer["ok"],
        "problems": answer["problems"],
        "run_id": run.run_id,
        "state": answer["state"],
        "detail": answer["detail"],
        "started_at": durations.format_timestamp(float(run.record.get("started_at") or 0)),
        "record": dict(run.record),
        "status": answer,
        "speed": comparison.speed_of(run),
        "curve": [{key: row.get(key) for key in keys} for row in curve],
        "checkpoints": [{"step": item.step, "damage": item.damage} for item in checkpoints.read_all(run.checkpoints)],
        "evaluations": [{key: row[key] for key in EVALUATED} for row in rows if "eval_loss" in row],
        "log_tail": files.read_tail(run.log, 4000).splitlines()[-20:],
    }
