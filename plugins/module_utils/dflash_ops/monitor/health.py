"""Proof of life: is a run on its way, has it arrived, or did it end, stall or crawl; told from status snapshots."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from ..run import metrics

SLOW_AFTER = 3  # windows of steps that a run has to reach its speed


@dataclasses.dataclass(frozen=True)
class Goal:
    """What counts as proved.

    Args:
        steps: steps over which a speed counts, and the least that must have been trained.
        expected_tok_s: speed to reach; 0: any.
        tolerance: part of it that is enough.
    """

    steps: int = metrics.WINDOW
    expected_tok_s: float = 0.0
    tolerance: float = 0.8

    @property
    def least(self) -> float:
        return self.expected_tok_s * self.tolerance


@dataclasses.dataclass(frozen=True)
class Judgement:
    """Where the proof stands.

    Args:
        state: waiting, alive, finished, dead, stalled, slow, gpu-lost, nan, or unknown.
        message: one sentence.
    """

    state: str
    message: str

    @property
    def over(self) -> bool:
        return self.state not in ("waiting", "unknown")

    @property
    def ok(self) -> bool:
        return self.state in ("alive", "finished")


def judge(answer: Mapping[str, Any], goal: Goal) -> Judgement:
    """Judge one status snapshot; `answer["steps_seen"]` is the number of steps this run has logged."""
    state, detail = str(answer.get("state")), str(answer.get("detail"))
    names = {str(item["name"]) for item in answer.get("problems") or ()}
    if state == "unknown":
        return Judgement("unknown", detail)
    if state in ("failed", "killed", "lost", "not running"):
        return Judgement(_named_end(names), detail)
    if state == "stopped":
        return Judgement("dead", f"it was stopped before it proved itself: {detail}")
    if state == "stalled":
        return Judgement("stalled", detail)
    if "gpu-lost" in names:
        return Judgement("gpu-lost", next(str(p["message"]) for p in answer["problems"] if p["name"] == "gpu-lost"))
    if is_nan(answer.get("loss")):
        return Judgement("nan", f"the loss of step {answer.get('step')} is {answer.get('loss')}")
    return _judge_speed(answer, goal, finished=state == "finished")


def _named_end(names: set[str]) -> str:
    for name, told in (("gpu-lost", "gpu-lost"), ("nan-loss", "nan"), ("nan_run", "nan")):
        if name in names:
            return told
    return "dead"


def _judge_speed(answer: Mapping[str, Any], goal: Goal, *, finished: bool) -> Judgement:
    seen, pace = int(answer.get("steps_seen") or 0), answer.get("tok_s")
    if finished and (not goal.expected_tok_s or not pace):
        return Judgement("finished", f"it came to its end at step {answer.get('step')}")
    if seen < goal.steps and not finished:
        return Judgement("waiting", str(answer.get("phase_text") or "starting"))
    best = float(answer.get("best_tok_s") or 0.0)
    if not goal.expected_tok_s or float(pace or 0) >= goal.least:
        return Judgement(
            "finished" if finished else "alive", f"{pace} tok/s over the last {min(seen, goal.steps)} steps"
        )
    if seen < SLOW_AFTER * goal.steps and not finished:
        return Judgement("waiting", f"{pace:.0f} of {goal.least:.0f} tok/s so far")
    return Judgement(
        "slow",
        f"{pace:.0f} tok/s over the last {goal.steps} steps (best {best:.0f}); "
        f"expected {goal.expected_tok_s:.0f}, tolerated {goal.least:.0f}",
    )


def is_nan(value: object) -> bool:
    """Tell whether a logged number is no number; JSON has none, so the trainer writes it as text."""
    return isinstance(value, str) and value.lower() in ("nan", "inf", "-inf")


def news(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """Return the lines an operator should see since the last look."""
    lines = []
    if now.get("pid") and now.get("pid") != before.get("pid"):
        lines.append(f"process {now['pid']} lives: {now.get('python') or 'starting'}")
    if now.get("torch") and now.get("torch") != before.get("torch"):
        lines.append(f"torch is {now['torch']}")
    lines += missed(before, now)
    phase = now.get("phase")
    if (
        phase
        and now.get("phase_text") != before.get("phase_text")
        and (phase != "training" or before.get("phase") != phase)
    ):
        lines.append(f"{phase}: {now['phase_text'].removeprefix(str(phase)).strip() or 'begun'}")
    if now.get("steps_seen") and now.get("step") != before.get("step"):
        lines.append(step_line(now))
    return lines


def missed(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """Return what phases came to that were over between two looks, or ended otherwise than last seen."""
    shown = list(before.get("phases") or ())
    over = [one for one in now.get("phases") or () if one[0] != now.get("phase")]
    return [f"{phase}: {detail}" for phase, detail in over if [phase, detail] not in shown]


def step_line(now: Mapping[str, Any]) -> str:
    """Return `step 20/400 loss 4.21 accept 1.35 tok/s 812`."""
    total = f"/{now['total_steps']}" if now.get("total_steps") else ""
    parts = [f"step {now.get('step')}{total}"]
    for key, name, form in (("loss", "loss", ".3f"), ("accept_len", "accept", ".2f"), ("tok_s", "tok/s", ".0f")):
        value = now.get(key)
        if isinstance(value, (int, float)):
            parts.append(f"{name} {value:{form}}")
        elif value is not None:
            parts.append(f"{name} {value}")
    return " ".join(parts)
