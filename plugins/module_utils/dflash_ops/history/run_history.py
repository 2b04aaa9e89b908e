"""The runs of a box as a list, and one run as a report."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from ..core import durations, files
from ..core.paths import Layout
from ..monitor import status
from ..run import checkpoints, metrics, runs
from . import comparison, known_good

CURVE_POINTS = 20
EVALUATED = ("step", "eval_loss", "eval_accept_len")


def row_of(run: runs.Run, *, current: str, good: str, bad: Sequence[str]) -> dict[str, Any]:
    """Return one line of the list."""
    said = status.verdict(run, grace=0.0)
    ended = run.read("exit.json")
    speed = comparison.speed_of(run)
    started = float(run.record.get("started_at") or 0)
    until = float(ended.get("finished_at") or (time.time() if said.state in status.LIVE else status.last_sign(run)))
    mark = "current" if run.run_id == current else ""
    marks = [mark, "known-good" if run.run_id == good else "", "bad" if run.run_id in bad else ""]
    return {
        "run_id": run.run_id,
        "label": run.record.get("label"),
        "started_at": durations.format_timestamp(started),
        "seconds": round(max(0.0, until - started)),
        "state": said.state,
        "detail": said.detail,
        "step": speed["step"],
        "steps": speed["steps"],
        "best_tok_s": speed["best_tok_s"],
        "loss": speed["loss"],
        "accept_len": speed["accept_len"],
        "env_id": run.record.get("env_id"),
        "release_id": run.record.get("release_id"),
        "marks": [text for text in marks if text],
    }


def listing(layout: Layout, *, last: int = 0) -> list[dict[str, Any]]:
    """Return the runs, oldest first; only the last ones when asked."""
    current = runs.current(layout)
    good = known_good.latest(layout) or {}
    bad = known_good.read(layout)["bad"]
    wanted = runs.run_ids(layout)[-last:] if last else runs.run_ids(layout)
    listed = [run for run_id in wanted if (run := runs.readable(layout, run_id))]
    return [
        row_of(run, current=current.run_id if current else "", good=good.get("run_id", ""), bad=bad) for run in listed
    ]


def report(layout: Layout, run: runs.Run) -> dict[str, Any]:
    """Return all that a report of one run shows."""
    rows = metrics.read_metrics(run.metrics)
    told = status.snapshot(layout, run_id=run.run_id, ask_gpus=False)
    step = max(1, -(-len(rows) // CURVE_POINTS))
    curve = rows[::step] + (rows[-1:] if rows and (len(rows) - 1) % step else [])
    keys = ("step", "loss", "accept_len", "tok_s", "lr", "grad_norm", "queue_depth")
    return {
        "ok": told["ok"],
        "problems": told["problems"],
        "run_id": run.run_id,
        "state": told["state"],
        "detail": told["detail"],
        "started_at": durations.format_timestamp(float(run.record.get("started_at") or 0)),
        "record": dict(run.record),
        "status": told,
        "speed": comparison.speed_of(run),
        "curve": [{key: row.get(key) for key in keys} for row in curve],
        "checkpoints": [{"step": item.step, "damage": item.damage} for item in checkpoints.look(run.checkpoints)],
        "evaluations": [{key: row[key] for key in EVALUATED} for row in rows if "eval_loss" in row],
        "log_tail": files.read_tail(run.log, 4000).splitlines()[-20:],
    }
