"""Plan of a rollback: choice of the target run, and checks that it can be launched as recorded."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .. import drift
from ..compile_cache import cache, cache_archive
from ..core import truncate
from ..core.errors import OpsError
from ..core.paths import Layout
from ..history import known_good
from ..run import trainer_command
from ..run.trainer_command import Selection
from . import downtime, preflight
from .ensure_run import refusal


def plan(layout: Layout, run_id: str, secrets: Mapping[str, str], *, check_mode: bool = False) -> dict[str, Any]:
    """Choose the target and check that it can be launched; stop and launch nothing.

    Raises:
        OpsError: no run can be the target, parts of the target are missing or changed, or a preflight check fails.
    """
    chosen = known_good.plan_rollback(layout, run_id)
    entry = chosen["entry"]
    if entry is None:
        return {"changed": False, "target": {}, "bad": [], "message": chosen["reason"]}
    target = target_of(layout, entry)
    found = _preflight(layout, entry, target["session"], secrets, store=not check_mode)
    bad = ", ".join(chosen["bad"]) or "no run"
    message = f"rolling back to {entry['run_id']} ({chosen['reason']}); {bad} will be marked bad"
    note = downtime.message(layout, found.place, found.cache)
    return {
        "changed": True,
        "target": target,
        "bad": chosen["bad"],
        "message": f"{message}\n{note}" if note else message,
        "diff": {"before": "".join(f"{run_id}\n" for run_id in chosen["bad"]), "after": f"{entry['run_id']}\n"},
    }


def _preflight(
    layout: Layout, entry: Mapping[str, Any], session: str, secrets: Mapping[str, str], *, store: bool
) -> preflight.Findings:
    """Run the preflight checks of the launch before anything is stopped for it.

    Raises:
        OpsError: all reasons against the launch.
    """
    selection = Selection.from_record(entry)
    found = preflight.check(layout, selection, session=session, secrets=secrets, replacing=True, store=store)
    if found.problems:
        raise refusal(found.problems, what="stopped or launched")
    return found


def target_of(layout: Layout, entry: Mapping[str, Any]) -> dict[str, Any]:
    """Return the launch options of the target.

    Raises:
        OpsError: environment or release is missing or differs from its record.
    """
    selection = Selection.from_record(entry)
    trainer_command.check_present(layout, selection)
    environment = drift.environment_drift(layout, selection.env_id)
    release = drift.release_drift(layout, selection.release_id)
    if environment or release:
        heal = [drift.HEAL_ENVIRONMENT] * bool(environment) + [drift.HEAL_RELEASE] * bool(release)
        raise OpsError(
            f"{entry['run_id']} cannot be launched as recorded: {truncate.join_items([*environment, *release], 10)}.",
            remedy=f"{' and '.join(heal)}, in a checkout of {selection.release_id} if yours is at another commit; "
            "then roll back",
        )
    where = cache.recorded_key(entry)
    archive = cache_archive.find(layout, where.cache_id)
    expected = dict(entry.get("speed") or {}).get("best_tok_s") or 0
    return {
        "run_id": entry["run_id"],
        "env_id": selection.env_id,
        "release_id": selection.release_id,
        "config": selection.config,
        "overrides": list(selection.overrides),
        "environment": dict(selection.extra),
        "label": entry.get("label") or "rollback",
        "session": entry.get("session") or "dflash",
        "archive": str(archive or ""),
        "cache_warm": cache.inspect(layout, where).warm,
        "expected_tok_s": float(expected),
    }
