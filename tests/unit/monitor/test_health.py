"""Health check: a name for every outcome, and time for a run to reach its speed."""

from __future__ import annotations

from typing import Any

import pytest
from dflash_ops.monitor import health, news
from dflash_ops.monitor.health import Goal


def answer(**more: Any) -> dict[str, Any]:
    base = {
        "state": "running",
        "detail": "d",
        "problems": [],
        "steps_seen": 30,
        "tok_s": 1000.0,
        "best_tok_s": 1000.0,
        "loss": 4.2,
        "step": 30,
        "phase_text": "training 30/400",
    }
    return {**base, **more}


def problem(name: str) -> dict[str, str]:
    return {"name": name, "message": f"about {name}", "remedy": ""}


@pytest.mark.parametrize(
    ("snapshot", "goal", "state"),
    [
        (answer(), Goal(), "healthy"),
        (answer(steps_seen=3), Goal(), "waiting"),
        (answer(), Goal(expected_tok_s=1200), "healthy"),
        (answer(), Goal(expected_tok_s=2000), "slow"),
        (answer(steps_seen=12), Goal(expected_tok_s=2000), "waiting"),
        (answer(state="failed", problems=[problem("failed")]), Goal(), "dead"),
        (answer(state="killed"), Goal(), "dead"),
        (answer(state="lost"), Goal(), "dead"),
        (answer(state="failed", problems=[problem("failed"), problem("gpu-lost")]), Goal(), "gpu-lost"),
        (answer(state="failed", problems=[problem("failed"), problem("nan-loss")]), Goal(), "nan"),
        (answer(state="stalled"), Goal(), "stalled"),
        (answer(problems=[problem("gpu-lost")]), Goal(), "gpu-lost"),
        (answer(loss="nan"), Goal(), "nan"),
        (answer(state="finished", steps_seen=4), Goal(), "finished"),
        (answer(state="finished", steps_seen=40), Goal(expected_tok_s=2000), "slow"),
        (answer(state="unknown"), Goal(), "unknown"),
    ],
)
def test_snapshot_and_goal_give_the_judgement(snapshot: dict[str, Any], goal: Goal, state: str) -> None:
    assert health.judge(snapshot, goal).state == state


def test_only_healthy_and_finished_pass_the_check() -> None:
    assert [health.Judgement(state, "").ok for state in ("healthy", "finished", "slow", "dead", "waiting")] == [
        True,
        True,
        False,
        False,
        False,
    ]


def test_phases_that_ended_between_two_snapshots_are_reported() -> None:
    seen = {"phase": "imports", "phase_text": "imports torch 2", "phases": [["imports", "torch 2"]]}
    later = {
        "phase": "compile",
        "phase_text": "compile every shape",
        "phases": [
            ["imports", "torch 2"],
            ["dataset", "48 samples, 12 batches an epoch"],
            ["target_weights", "target[0] layer 30/30"],
            ["compile", "every shape"],
        ],
    }
    assert news.lines(seen, later) == [
        "dataset: 48 samples, 12 batches an epoch",
        "target_weights: target[0] layer 30/30",
        "compile: every shape",
    ]
    assert news.lines(later, later) == []


def test_each_phase_is_reported_once() -> None:
    first = {"pid": 7, "python": "/e/bin/python", "phase": "dataset", "phase_text": "dataset 12 samples", "step": None}
    assert news.lines({}, first) == ["process 7 is running: /e/bin/python", "dataset: 12 samples"]
    assert news.lines(first, first) == []
    second = {
        **first,
        "phase": "training",
        "phase_text": "training 1/9",
        "step": 1,
        "steps_seen": 1,
        "total_steps": 9,
        "loss": 5.0,
        "accept_len": 1.5,
        "tok_s": 100.0,
    }
    assert news.lines(first, second)[-1] == "step 1/9 loss 5.000 accept 1.50 tok/s 100"
