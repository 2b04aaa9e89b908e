"""Rollback: what to go back to, and that all of it is still here."""

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


def plan(layout: Layout, wanted: str, secrets: Mapping[str, str]) -> dict[str, Any]:
    """Choose the target and prove that it can be launched; changes nothing.

    Raises:
        OpsError: there is nothing to go back to, parts of it are gone or changed, or the box does not let it run.
    """
    chosen = known_good.plan_rollback(layout, wanted)
    entry = chosen["entry"]
    if entry is None:
        return {"changed": False, "target": {}, "bad": [], "message": chosen["reason"]}
    target = target_of(layout, entry)
    found = looked(layout, entry, target["session"], secrets)
    bad = ", ".join(chosen["bad"]) or "no run"
    said = f"going back to {entry['run_id']} ({chosen['reason']}); {bad} will be marked bad"
    waits = downtime.told(layout, found.place, found.cache)
    return {
        "changed": True,
        "target": target,
        "bad": chosen["bad"],
        "message": f"{said}\n{waits}" if waits else said,
        "diff": {"before": "".join(f"{run_id}\n" for run_id in chosen["bad"]), "after": f"{entry['run_id']}\n"},
    }


def looked(
    layout: Layout, entry: Mapping[str, Any], session: str, secrets: Mapping[str, str]
) -> preflight.Findings:
    """Take the other looks of a launch before anything is stopped for it.

    Raises:
        OpsError: every reason not to launch.
    """
    found = preflight.look(layout, Selection.from_record(entry), session=session, secrets=secrets, replacing=True)
    if found.problems:
        raise refusal(found.problems, what="stopped or launched")
    return found


def target_of(layout: Layout, entry: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a launch needs.

    Raises:
        OpsError: environment or release are gone, or are not what the record says.
    """
    selection = Selection.from_record(entry)
    trainer_command.check_present(layout, selection)
    environment = drift.environment_drift(layout, selection.env_id)
    release = drift.release_drift(layout, selection.release_id)
    if environment or release:
        heal = [drift.HEAL_ENVIRONMENT] * bool(environment) + [drift.HEAL_RELEASE] * bool(release)
        raise OpsError(
            f"{entry['run_id']} cannot be launched as it was: {truncate.listed([*environment, *release], 10)}.",
            remedy=f"{' and '.join(heal)}, in a checkout of {selection.release_id} when yours is another one; "
            "then roll back",
        )
    where = cache.place_of(entry)
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
        "cache_warm": cache.look(layout, where).warm,
        "expected_tok_s": float(expected),
    }
