"""Comparison of two runs: choice of the runs, differences, and the likely cause of a lower speed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..core.errors import OpsError
from ..core.paths import Layout
from ..history import comparison, known_good
from ..monitor import verdict
from ..monitor.failures import problem
from ..run import metrics, runs

SLOW_RATIO = 0.9


def compare_runs(layout: Layout, run_a: str, run_b: str) -> dict[str, Any]:
    """Compare A (default: known-good) with B (default: current).

    Raises:
        OpsError: a run does not exist, or A was not named and no run is known-good.
    """
    if not run_a:
        good = known_good.latest(layout)
        if good is None:
            raise missing_baseline(layout)
        run_a = good["run_id"]
    a, b = runs.load(layout, run_a), runs.require(layout, run_b)
    result = comparison.compare(layout, a, b)
    problems = slow_problems(result, good=known_good.promoted(layout, a.run_id))
    states = {"a": verdict.read(a, grace=0.0).state, "b": verdict.read(b, grace=0.0).state}
    return {"ok": not problems, "problems": problems, "states": states, **result}


def slow_problems(result: Mapping[str, Any], *, good: bool) -> list[dict[str, str]]:
    """Return the problem that B is slower than A; empty when either run has too few steps for a speed."""
    a, b = (result["speed"][side] for side in ("a", "b"))
    if min(a["steps"], b["steps"]) < metrics.WINDOW or not (a["tok_s"] and b["tok_s"]):
        return []
    if b["tok_s"] >= a["tok_s"] * SLOW_RATIO:
        return []
    culprit = result["differences"][0]["text"] if result["differences"] else "no recorded difference"
    text = f"{b['tok_s']:.0f} tok/s, {a['tok_s']:.0f} before; most likely cause: {culprit}"
    remedy = "revert the change, or playbooks/rollback.yml" if good else "revert the change, then relaunch.yml"
    return [problem("slower", text, remedy)]


def missing_baseline(layout: Layout) -> OpsError:
    """Return the error, with its remedy, for a comparison without a named and without a known-good run."""
    known = runs.run_ids(layout)
    if not known:
        return OpsError(
            "a comparison needs two runs, and no run exists on this box yet.", remedy="deploy.yml starts the first run"
        )
    newest = runs.load_or_none(layout, known[-1])
    good = newest is not None and known_good.can_be_promoted(layout, newest)
    if len(known) == 1:
        keep = "playbooks/promote.yml records it as known-good; " * good
        return OpsError(
            f"a comparison needs two runs, and {known[0]} is the only run on this box.",
            remedy=f"{keep}after the next deploy.yml or relaunch.yml, compare.yml shows what differs from it"
            + f" with -e run_a={known[0]}" * (not good),
        )
    return OpsError(
        "no run is known-good, and run_a was not given.",
        remedy=f"-e run_a={known[-2]} compares with the previous run (playbooks/runs.yml lists all)"
        + ", or promote a run" * good,
    )
