"""Health check of a run: a judgement from one status snapshot."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from ..run import metrics
from . import rules


@dataclasses.dataclass(frozen=True)
class Goal:
    """Conditions for a healthy run.

    Args:
        steps: number of steps to train at least, and the window over which the speed counts.
        expected_tok_s: expected speed; 0: any speed.
        tolerance: fraction of it that is enough.
    """

    steps: int = metrics.WINDOW
    expected_tok_s: float = 0.0
    tolerance: float = rules.TOLERANCE

    @property
    def required_tok_s(self) -> float:
        """The lowest speed that is not slow."""
        return rules.required_tok_s(self.expected_tok_s, self.tolerance)


@dataclasses.dataclass(frozen=True)
class Judgement:
    """Result of a health check.

    Args:
        state: waiting, healthy, finished, dead, stalled, slow, gpu-lost, nan, or unknown.
        message: one sentence.
    """

    state: str
    message: str

    @property
    def over(self) -> bool:
        """True when the result is final."""
        return self.state not in ("waiting", "unknown")

    @property
    def ok(self) -> bool:
        """True when the check passed."""
        return self.state in ("healthy", "finished")


def judge(answer: Mapping[str, Any], goal: Goal) -> Judgement:
    """Judge one status snapshot; `answer["steps_seen"]` is the number of steps this run has logged."""
    state, detail = str(answer.get("state")), str(answer.get("detail"))
    names = {str(item["name"]) for item in answer.get("problems") or ()}
    if state == "unknown":
        return Judgement("unknown", detail)
    if state in (*rules.DEAD, "not running"):
        return Judgement(_reason_of_death(names), detail)
    if state == "stopped":
        return Judgement("dead", f"the run was stopped before its health check passed: {detail}")
    if state == "stalled":
        return Judgement("stalled", detail)
    if "gpu-lost" in names:
        return Judgement("gpu-lost", next(str(p["message"]) for p in answer["problems"] if p["name"] == "gpu-lost"))
    if is_nan(answer.get("loss")):
        return Judgement("nan", f"the loss of step {answer.get('step')} is {answer.get('loss')}")
    return _judge_speed(answer, goal, finished=state == "finished")


def _reason_of_death(names: set[str]) -> str:
    for name, state in (("gpu-lost", "gpu-lost"), ("nan-loss", "nan"), ("nan_run", "nan")):
        if name in names:
            return state
    return "dead"


def _judge_speed(answer: Mapping[str, Any], goal: Goal, *, finished: bool) -> Judgement:
    steps, required = int(answer.get("steps_seen") or 0), goal.required_tok_s
    tok_s = float(answer.get("tok_s") or 0.0)
    if finished and (not required or not tok_s):
        return Judgement("finished", f"training is complete at step {answer.get('step')}")
    if steps < goal.steps and not finished:
        return Judgement("waiting", str(answer.get("phase_text") or "starting"))
    if not rules.is_slow(tok_s, required=required):
        text = f"{tok_s} tok/s over the last {min(steps, goal.steps)} steps"
        return Judgement("finished" if finished else "healthy", text)
    if not finished and not rules.had_time_to_speed_up(steps, window=goal.steps):
        return Judgement("waiting", f"{tok_s:.0f} of {required:.0f} tok/s so far")
    return Judgement(
        "slow",
        f"{tok_s:.0f} tok/s over the last {goal.steps} steps (best {float(answer.get('best_tok_s') or 0.0):.0f}); "
        f"expected {goal.expected_tok_s:.0f}, required {required:.0f}",
    )


def is_nan(value: object) -> bool:
    """Return True for NaN or Inf; the trainer logs them as text, since JSON has neither."""
    return isinstance(value, str) and value.lower() in ("nan", "inf", "-inf")
