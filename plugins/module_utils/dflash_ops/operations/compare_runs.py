"""Which two runs an operator means, and the answer about them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..core.errors import OpsError
from ..core.paths import Layout
from ..history import comparison, known_good
from ..monitor import verdict
from ..monitor.failures import problem
from ..run import metrics, runs

SLOWER = 0.9


def compare_runs(layout: Layout, run_a: str, run_b: str) -> dict[str, Any]:
    """Compare A (default: known-good) with B (default: current).

    Raises:
        OpsError: a run does not exist, or there is no known-good and none was named.
    """
    if not run_a:
        good = known_good.latest(layout)
        if good is None:
            raise nothing_to_compare_with(layout)
        run_a = good["run_id"]
    a, b = runs.load(layout, run_a), runs.need(layout, run_b)
    told = comparison.compare(layout, a, b)
    problems = slower(told, good=known_good.promoted(layout, a.run_id))
    states = {"a": verdict.read(a, grace=0.0).state, "b": verdict.read(b, grace=0.0).state}
    return {"ok": not problems, "problems": problems, "states": states, **told}


def slower(told: Mapping[str, Any], *, good: bool) -> list[dict[str, str]]:
    """Return the problem that B is slower than A; a run that ended before it had a speed is no slow one."""
    a, b = (told["speed"][side] for side in ("a", "b"))
    if min(a["steps"], b["steps"]) < metrics.WINDOW or not (a["tok_s"] and b["tok_s"]):
        return []
    if b["tok_s"] >= a["tok_s"] * SLOWER:
        return []
    culprit = told["differences"][0]["text"] if told["differences"] else "nothing that is recorded differs"
    text = f"{b['tok_s']:.0f} tok/s, {a['tok_s']:.0f} before; likeliest culprit: {culprit}"
    return [problem("slower", text, "undo it, or playbooks/rollback.yml" if good else "undo it, then relaunch.yml")]


def nothing_to_compare_with(layout: Layout) -> OpsError:
    """Say what to do first while no run is known-good and none was named."""
    known = runs.run_ids(layout)
    if not known:
        return OpsError("nothing ran on this box yet, and two runs are compared.", remedy="deploy.yml starts the first")
    newest = runs.readable(layout, known[-1])
    good = newest is not None and known_good.can_be_promoted(layout, newest)
    if len(known) == 1:
        keep = "playbooks/promote.yml keeps it as known-good; " * good
        return OpsError(
            f"{known[0]} is the only run here, and two are compared.",
            remedy=f"{keep}after the next deploy.yml or relaunch.yml, compare.yml says what differs from it"
            + f" with -e run_a={known[0]}" * (not good),
        )
    return OpsError(
        "no run is known-good, and none to compare with was named.",
        remedy=f"-e run_a={known[-2]} takes the run before (playbooks/runs.yml lists all)" + ", or promote one" * good,
    )
