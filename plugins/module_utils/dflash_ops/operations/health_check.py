"""Health check of a run on the box: wait for progress, judge the run, and compare a slow run with known-good."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Mapping
from typing import Any

from ..core.paths import Layout
from ..history import comparison, known_good
from ..monitor import health
from ..monitor.health import Goal
from ..run import metrics, run_processes, runs

POLL_SECONDS = 0.2


def news_key(run: runs.Run) -> str:
    """Return a key that changes with the run's phase, its progress and the newest step."""
    state = run.read("state.json")
    newest = metrics.read_metrics(run.metrics, limit=65536)[-1:]
    step = newest[0]["step"] if newest else state.get("step")
    ended = "ended" if (run.folder / "exit.json").exists() else ""
    return f"{state.get('phase')} {state.get('detail')} {state.get('done')} {step} {ended}"


def wait_for_news(layout: Layout, run_id: str, *, last_key: str, seconds: float) -> None:
    """Wait at most `seconds` until the news key differs from `last_key` or the run ends."""
    run = runs.select(layout, run_id)
    deadline = time.monotonic() + seconds
    while run is not None and time.monotonic() < deadline:
        if news_key(run) != last_key or run_processes.main_process(run) is None:
            return
        time.sleep(POLL_SECONDS)


def judge(layout: Layout, answer: Mapping[str, Any], params: Mapping[str, Any]) -> dict[str, Any]:
    """Return the judgement, the comparison of a slow run with the known-good one, and the newest news key."""
    run = runs.select(layout, params["run"]) if answer.get("run_id") else None
    expected = dict(run.record.get("expected") or {}) if run else {}
    goal = Goal(
        steps=int(params["speed_steps"]),
        tolerance=float(params["tolerance"]),
        expected_tok_s=float(params["expected_tok_s"] or expected.get("tok_s") or 0),
    )
    judgement = health.judge(answer, goal)
    return {
        "judgement": {**dataclasses.asdict(judgement), "over": judgement.over, "ok": judgement.ok},
        "comparison": compare_with_known_good(layout, run) if run and judgement.state == "slow" else None,
        "news_key": news_key(run) if run else "",
    }


def compare_with_known_good(layout: Layout, run: runs.Run) -> dict[str, Any]:
    """Return the comparison of the newest known-good run with a slow run; empty without another known-good run."""
    good = known_good.latest(layout)
    if good is None or good["run_id"] == run.run_id or not (layout.run(good["run_id"]) / "run.json").is_file():
        return {}
    return comparison.compare(layout, runs.load(layout, good["run_id"]), run)
