"""Activity of a box: jobs, lock holder, remaining time and the best known speed."""

from __future__ import annotations

import json
import os
import shutil
import time
from pathlib import Path
from typing import Any

import pytest
from boxes import Box, until
from dflash_controller import screens
from dflash_ops.core import jobs, operator_lock
from dflash_ops.core.paths import Layout
from dflash_ops.history import known_good
from dflash_ops.operations import box_activity
from dflash_ops.run import metrics, runs

SPEEDS = {"20260101T000000Z-a": 500.0, "20260102T000000Z-b": 900.0, "20260103T000000Z-c": 700.0}


def a_run(layout: Layout, run_id: str, tok_s: float, **record: Any) -> None:
    """Write the folder of a run that trained some steps."""
    folder = layout.run(run_id)
    folder.mkdir(parents=True)
    full = {"run_id": run_id, "config_file": "demo.toml", "overrides": [], "hardware": "x", "gpus": [], **record}
    (folder / "run.json").write_text(json.dumps(full))
    rows = [{"step": step, "time": 1000.0 + 2 * step, "tok_s": tok_s} for step in range(1, 21)]
    (folder / "metrics.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))


def screen(layout: Layout) -> str:
    return "\n".join(screens.status_screen(box_activity.snapshot(layout)))


def test_best_speed_of_other_runs_of_this_configuration_is_shown(layout: Layout) -> None:
    for run_id, tok_s in SPEEDS.items():
        a_run(layout, run_id, tok_s)
    a_run(layout, "20260102T000000Z-faster", 5000.0, overrides=["drafter.num_layers=1"])
    runs.set_current(layout, "20260103T000000Z-c")
    assert box_activity.best_known(layout, "20260103T000000Z-c") == {"tok_s": 900.0, "run_id": "20260102T000000Z-b"}
    assert "700 tok/s (best 700, best known 900 of 20260102T000000Z-b)" in screen(layout)
    assert box_activity.best_known(layout, "20260101T000000Z-a") is None  # nothing came before it
    known_good.mark(layout, bad=["20260102T000000Z-b"])
    assert box_activity.best_known(layout, "20260103T000000Z-c") == {"tok_s": 500.0, "run_id": "20260101T000000Z-a"}


def test_speed_of_a_known_good_run_counts_without_its_folder(layout: Layout) -> None:
    a_run(layout, "20260103T000000Z-c", 700.0)
    same = {"config_file": "demo.toml", "overrides": [], "hardware": "x", "gpus": []}
    known_good.promote(layout, {"run_id": "20250101T000000Z-old", "speed": {"best_tok_s": 800.0}, **same})
    known_good.promote(layout, {"run_id": "other", "speed": {"best_tok_s": 9000.0}, **same, "hardware": "y"})
    assert box_activity.best_known(layout, "20260103T000000Z-c") == {"tok_s": 800.0, "run_id": "20250101T000000Z-old"}


def test_remaining_time_includes_pauses_and_the_time_since_the_last_step(layout: Layout) -> None:
    a_run(layout, "20260101T000000Z-a", 500.0)
    rows = metrics.read_metrics(layout.run("20260101T000000Z-a") / "metrics.jsonl")
    assert metrics.seconds_left(rows, 120, now=1040.0) == 200.0
    assert metrics.seconds_left(rows, 120, now=1050.0) == 190.0
    assert metrics.seconds_left(rows, None, now=1040.0) is None
    assert metrics.seconds_left(rows[:1], 120, now=1040.0) is None


@pytest.mark.skipif(not shutil.which("tmux"), reason="tmux is not installed")
class TestLive:
    """On a box with a run and a job."""

    def test_status_shows_jobs_lock_holder_configuration_and_remaining_time(
        self, box: Box, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        real, entries = jobs.package_sources(), (Path(__file__).parents[1] / "job_entries.py").read_bytes()
        monkeypatch.setattr(jobs, "package_sources", lambda: {**real, "job_entries.py": entries})
        run = box.launch("test.pause=0.1")
        until(lambda: len(metrics.read_metrics(run.metrics)) > 3)
        jobs.start_or_attach(box.layout, "prewarm-x", "job_entries:persist", {}, title="warm compile cache x")
        until(lambda: "sleeping" in str(box_activity.running_jobs(box.layout)))
        held = operator_lock.holder_of(os.getpid(), operation="relaunch")
        operator_lock.acquire(box.layout, held)
        shown = screen(box.layout)
        assert "  config      demo.toml test.pause=0.1\n" in shown
        assert " s, until about " in shown
        assert "  job         prewarm-x (warm compile cache x) for " in shown
        assert " s: sleeping\n" in shown
        assert f"  locked by   {held.operator} on {held.host} (pid {os.getpid()}) since " in shown
        assert shown.partition("locked by")[2].splitlines()[0].endswith("for: relaunch")

    def test_box_without_a_run_shows_the_lock_holder(self, box: Box) -> None:
        operator_lock.acquire(box.layout, operator_lock.holder_of(os.getpid(), operation="deploy"))
        assert "○ not running" in screen(box.layout)
        assert screen(box.layout).endswith("for: deploy")

    def test_dead_process_or_expired_lease_does_not_hold_the_lock(self, box: Box) -> None:
        held = operator_lock.holder_of(os.getpid(), operation="deploy")
        operator_lock.acquire(box.layout, held, now=time.time() - operator_lock.LEASE_SECONDS - 1)
        assert box_activity.lock_holder(box.layout) is None
        dead = operator_lock.holder_from({**held.as_dict(), "start_ticks": 1})
        operator_lock.acquire(box.layout, dead)
        assert box_activity.lock_holder(box.layout) is None
