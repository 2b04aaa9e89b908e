"""Which two runs an operator means, and the answer about them."""

from __future__ import annotations

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
            raise OpsError(
                "there is no known-good run to compare with.", remedy="name one with -e run_a=ID, or promote one"
            )
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
