"""The box's half of a proof of life: wait for news, judge, and say what differs when a run is slow."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from . import compare, cut, known_good, life, living, metrics, runs, screens
from .life import Goal
from .paths import Layout

PAUSE = 0.2


def news_key(run: runs.Run) -> str:
    """Return what an operator would see change: phase, its progress, and the newest step."""
    state = run.read("state.json")
    newest = metrics.read_metrics(run.metrics, limit=65536)[-1:]
    step = newest[0]["step"] if newest else state.get("step")
    ended = "ended" if (run.folder / "exit.json").exists() else ""
    return f"{state.get('phase')} {state.get('detail')} {state.get('done')} {step} {ended}"


def wait_for_news(layout: Layout, run_id: str, *, seen: str, seconds: float) -> None:
    """Wait at most `seconds` until the run says something else than `seen`, or is gone."""
    run = runs.chosen(layout, run_id)
    deadline = time.monotonic() + seconds
    while run is not None and time.monotonic() < deadline:
        if news_key(run) != seen or living.main_process(run) is None:
            return
        time.sleep(PAUSE)


def judge(layout: Layout, answer: Mapping[str, Any], want: Mapping[str, Any]) -> dict[str, Any]:
    """Return the judgement, the panel, and what the caller has seen now."""
    run = runs.chosen(layout, want["run"]) if answer.get("run_id") else None
    expected = dict(run.record.get("expected") or {}) if run else {}
    goal = Goal(
        steps=int(want["speed_steps"]),
        tolerance=float(want["tolerance"]),
        expected_tok_s=float(want["expected_tok_s"] or expected.get("tok_s") or 0),
    )
    said = life.judge(answer, goal)
    difference = what_changed(layout, run) if said.state == "slow" and run is not None else []
    return {
        "judgement": {"state": said.state, "message": said.message, "over": said.over, "ok": said.ok},
        "panel": [*screens.panel(answer, said), *difference],
        "differs": difference,
        "seen": news_key(run) if run else "",
    }


def what_changed(layout: Layout, run: runs.Run) -> list[str]:
    """Say what differs from the known-good run, likeliest first."""
    good = known_good.latest(layout)
    if good is None or good["run_id"] == run.run_id or not (layout.run(good["run_id"]) / "run.json").is_file():
        return ["  no known-good run to compare with"]
    told = compare.compare(layout, runs.load(layout, good["run_id"]), run)
    head = f"  what differs from known-good {good['run_id']} ({told['speed']['a']['best_tok_s']} tok/s):"
    lines = [f"    {place}. {item['text']}" for place, item in enumerate(told["differences"], start=1)]
    listed = cut.first_lines(lines, 10, indent="    ")
    return [head, *(listed or ["    nothing that is recorded: look at load, clocks and temperature of the box"])]
