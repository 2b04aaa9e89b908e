"""Rules for stalled, slow and dead, and their use by status, health check and notification."""

from __future__ import annotations

import pytest
from dflash_ops.monitor import health, problems, rules
from dflash_ops.monitor.step_line import step_text


def steps(seconds: float) -> list[dict[str, float]]:
    return [{"step": step, "time": step * seconds} for step in range(12)]


@pytest.mark.parametrize(("step_seconds", "limit"), [(1.0, 300.0), (30.0, 600.0)])
def test_long_steps_raise_the_stall_limit(step_seconds: float, limit: float) -> None:
    assert rules.stall_limit(steps(step_seconds), 300.0) == limit


@pytest.mark.parametrize(
    ("process_state", "silence", "reason"),
    [
        ("S", 299.0, ""),
        ("S", 301.0, "no step and no log line for 301 s (limit 300 s)"),
        ("T", 0.0, "process 7 is suspended (state T); resume it with SIGCONT"),
        ("", 0.0, ""),
    ],
)
def test_silence_and_suspension_are_stalls(process_state: str, silence: float, reason: str) -> None:
    assert rules.stall_reason(pid=7, process_state=process_state, silence=silence, limit=300.0) == reason


@pytest.mark.parametrize("logged", [29, 30])
@pytest.mark.parametrize("tok_s", [799.0, 800.0])
def test_status_and_health_check_agree_on_slow(tok_s: float, logged: int) -> None:
    answer = {"state": "running", "tok_s": tok_s, "expected_tok_s": 1000.0, "speed_steps": 10, "steps_seen": logged}
    slow = tok_s < 800 and logged >= 30
    assert [item["name"] for item in problems.slow(answer, steps=logged)] == ["slow"] * slow
    assert (health.judge(answer, health.Goal(steps=10, expected_tok_s=1000.0)).state == "slow") is slow


@pytest.mark.parametrize(
    ("state", "names", "event"),
    [
        ("failed", ["failed"], "dead"),
        ("killed", [], "dead"),
        ("lost", [], "dead"),
        ("stalled", ["slow"], "stalled"),
        ("finished", [], "finished"),
        ("running", ["nan-loss", "slow"], "slow"),
        ("running", ["nan-loss"], ""),
        ("unknown", ["state-unreadable"], ""),
    ],
)
def test_state_and_problems_give_the_event(state: str, names: list[str], event: str) -> None:
    assert rules.event({"state": state, "problems": [{"name": name} for name in names]}) == event


def test_step_text_has_the_fields_of_the_console_line_in_its_order() -> None:
    answer = {"step": 20, "total_steps": 400, "loss": 4.2134, "accept_len": 1.351, "tok_s": 812.4, "lr": 6.25e-4}
    assert step_text({**answer, "epoch": 0}) == "20/400 loss 4.213 accept 1.35 tok/s 812 lr 6.25e-04 epoch 0"
    assert step_text({"step": 3, "loss": "nan"}) == "3 loss nan"
    assert step_text({"step": None}) == ""
