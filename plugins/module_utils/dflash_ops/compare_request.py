"""Which two runs an operator means, and the answer about them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from . import compare, known_good, runs
from .errors import OpsError
from .failures import problem
from .paths import Layout

SLOWER = 0.9


def compare_runs(layout: Layout, run_a: str, run_b: str) -> dict[str, Any]:
    """Compare A (default: known-good) with B (default: current).

    Raises:
        OpsError: a run does not exist, or there is no known-good and none was named.
    """
    if not run_a:
        good = known_good.latest(layout)
        if good is None:
            raise nothing_to_compare_with(runs.run_ids(layout))
        run_a = good["run_id"]
    told = compare.compare(layout, runs.load(layout, run_a), runs.need(layout, run_b))
    problems = []
    before, after = (told["speed"][side]["tok_s"] for side in ("a", "b"))
    if before and after and after < before * SLOWER:
        culprit = told["differences"][0]["text"] if told["differences"] else "nothing that is recorded differs"
        problems.append(
            problem(
                "slower",
                f"{after:.0f} tok/s, {before:.0f} before; likeliest culprit: {culprit}",
                "undo it, or playbooks/rollback.yml",
            )
        )
    return {"ok": not problems, "problems": problems, **told}


def nothing_to_compare_with(known: Sequence[str]) -> OpsError:
    """Say what to do first while no run is known-good and none was named."""
    if not known:
        return OpsError("nothing ran on this box yet, and two runs are compared.", remedy="deploy.yml starts the first")
    if len(known) == 1:
        return OpsError(
            f"{known[0]} is the only run here, and two are compared.",
            remedy="playbooks/promote.yml keeps it as known-good; after the next deploy.yml or relaunch.yml, "
            "compare.yml says what differs from it",
        )
    return OpsError(
        "no run is known-good, and none to compare with was named.",
        remedy=f"-e run_a={known[-2]} takes the run before (playbooks/runs.yml lists all), or promote one",
    )
