"""Record of known-good runs in promotion order, and of the runs that were rolled back."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from ..core import files
from ..core.errors import OpsError
from ..core.paths import Layout
from ..monitor import rules, status, verdict
from ..run import runs
from . import comparison

KEPT_KEYS = (
    "label",
    "env_id",
    "lock_sha256",
    "release_id",
    "tree_hash",
    "cache_id",
    "shape_id",
    "hardware",
    "cache_state",
    "config_file",
    "overrides",
    "extra_environment",
    "config",
    "needs",
    "inputs",
    "gpus",
    "driver",
    "session",
)


def read(layout: Layout) -> dict[str, Any]:
    """Return `{"history": [entries, oldest first], "bad": [run ids]}`."""
    value = files.read_json(layout.known_good)
    if layout.known_good.exists() and not isinstance(value, dict):
        raise OpsError(
            f"{layout.known_good} is not valid JSON.", remedy="restore it, or move it away and promote again"
        )
    value = value or {}
    return {"history": list(value.get("history") or ()), "bad": list(value.get("bad") or ())}


def good_entries(layout: Layout) -> list[dict[str, Any]]:
    """Return the entries that are not marked bad, oldest first."""
    record = read(layout)
    return [entry for entry in record["history"] if entry["run_id"] not in record["bad"]]


def latest(layout: Layout) -> dict[str, Any] | None:
    """Return the newest entry that is not marked bad; None when there is none."""
    return next(reversed(good_entries(layout)), None)


def entry_of(layout: Layout, run: runs.Run, *, by: str, allow_dirty: bool = False) -> dict[str, Any]:
    """Build the entry of a run that may be promoted.

    Raises:
        OpsError: the run failed, never trained, is slower than required, trains uncommitted code, or is marked bad.
    """
    answer = status.snapshot(layout, run_id=run.run_id)
    if answer["state"] not in ("running", "finished", "stopped"):
        raise OpsError(
            f"run {run.run_id} is {answer['state']} ({answer['detail']}) and cannot be promoted.",
            remedy="promote a run that is training, finished or stopped",
        )
    speed = comparison.speed_of(run)
    if not speed["steps"] or not speed["tok_s"]:
        raise OpsError(
            f"run {run.run_id} has not logged a step with a speed yet.",
            remedy="wait until its health check has passed",
        )
    expected = dict(run.record.get("expected") or {})
    required = rules.required_tok_s(float(expected.get("tok_s") or 0), expected.get("tolerance"))
    if rules.is_slow(float(speed["best_tok_s"] or 0), required=required):
        raise OpsError(
            f"run {run.run_id} reached {speed['best_tok_s']:.0f} tok/s; {required:.0f} are required.",
            remedy="playbooks/compare.yml shows the differences from another run",
        )
    if run.record.get("release_dirty") and not allow_dirty:
        raise OpsError(
            f"run {run.run_id} trains release {run.record.get('release_id')}, which is not a commit.",
            remedy="commit trainer/, relaunch, then promote (or -e trainer_release_allow_dirty=true)",
        )
    if run.run_id in read(layout)["bad"]:
        raise OpsError(f"run {run.run_id} was rolled back and is marked bad.", remedy="promote another run")
    return {
        "run_id": run.run_id,
        "promoted_at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "by": by,
        "speed": speed,
        "archive": "",
        **{key: run.record.get(key) for key in KEPT_KEYS},
    }


def can_be_promoted(layout: Layout, run: runs.Run) -> bool:
    """Return True when promote.yml would accept this run."""
    try:
        entry_of(layout, run, by="")
    except OpsError:
        return False
    return True


def promoted(layout: Layout, run_id: str) -> bool:
    """Return True when this run is the newest known-good one."""
    newest = latest(layout)
    return bool(newest and newest["run_id"] == run_id)


def promote(layout: Layout, entry: dict[str, Any]) -> None:
    """Add an entry; an earlier one of the same run moves to the end."""
    record = read(layout)
    record["history"] = [*(item for item in record["history"] if item["run_id"] != entry["run_id"]), entry]
    files.write_json(layout.known_good, record)


def mark(layout: Layout, *, bad: Sequence[str], good: str = "") -> None:
    """Mark runs as bad, so that no rollback selects them by default; remove the mark of the run `good`."""
    record = read(layout)
    record["bad"] = sorted({*record["bad"], *bad} - {good})
    files.write_json(layout.known_good, record)


def source_of(run: runs.Run) -> str:
    """Return the id of the run whose state a rollback restored into `run`; else the id of `run`."""
    return runs.rollback_target(run) or run.run_id


def plan_rollback(layout: Layout, run_id: str = "") -> dict[str, Any]:
    """Choose the state to roll back to.

    Args:
        layout: the box.
        run_id: the run to restore; empty for the last known-good one.

    Returns:
        `{"entry": entry or None, "bad": [run ids to mark], "reason": str}`; no entry: there is nothing to do.

    Raises:
        OpsError: no run is known-good, or the named run does not exist.
    """
    current = runs.current(layout)
    if run_id:
        entry = next((item for item in read(layout)["history"] if item["run_id"] == run_id), None)
        if entry is None:
            run = runs.load(layout, run_id)
            entry = {"run_id": run_id, **{key: run.record.get(key) for key in KEPT_KEYS}}
        replaced = [current.run_id] if current and source_of(current) != run_id else []
        return {"entry": entry, "bad": replaced, "reason": f"run={run_id} was requested"}
    entries = good_entries(layout)
    if not entries:
        raise OpsError(
            "no known-good run exists, so a rollback has no target.",
            remedy="promote one first, or name one with -e run=ID",
        )
    if current is None:
        return {"entry": entries[-1], "bad": [], "reason": "no run is current"}
    promoted_itself = current.run_id in [item["run_id"] for item in entries]
    source = current.run_id if promoted_itself else source_of(current)
    if source != entries[-1]["run_id"]:
        return {"entry": entries[-1], "bad": [current.run_id], "reason": f"the last known-good before {current.run_id}"}
    return _previous(current, entries)


def _previous(current: runs.Run, entries: list[dict[str, Any]]) -> dict[str, Any]:
    """Plan a rollback while the current run is the known-good one: select the entry before it, where there is one."""
    if len(entries) > 1:
        return {
            "entry": entries[-2],
            "bad": sorted({current.run_id, entries[-1]["run_id"]}),
            "reason": f"{current.run_id} is itself the known-good run; this is the one before it",
        }
    if verdict.read(current).state in rules.LIVE:
        return {"entry": None, "bad": [], "reason": f"{current.run_id} is already running the only known-good state"}
    return {"entry": entries[-1], "bad": [], "reason": "the only known-good state, which is not running"}
