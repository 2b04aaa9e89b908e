"""Known-good runs: those that proved themselves, in the order they were promoted, and those that were rolled back."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from ..core import files
from ..core.errors import OpsError
from ..core.paths import Layout
from ..monitor import status
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
            f"{layout.known_good} cannot be read as JSON.", remedy="restore it, or move it away and promote again"
        )
    value = value or {}
    return {"history": list(value.get("history") or ()), "bad": list(value.get("bad") or ())}


def good_entries(layout: Layout) -> list[dict[str, Any]]:
    """Return the entries that were never rolled back, oldest first."""
    book = read(layout)
    return [entry for entry in book["history"] if entry["run_id"] not in book["bad"]]


def latest(layout: Layout) -> dict[str, Any] | None:
    """Return the known-good entry that holds now."""
    return next(reversed(good_entries(layout)), None)


def entry_of(layout: Layout, run: runs.Run, *, by: str, allow_dirty: bool = False) -> dict[str, Any]:
    """Build the entry of a run that may be promoted.

    Raises:
        OpsError: it ended badly, never trained, or stays under its expected speed.
    """
    told = status.snapshot(layout, run_id=run.run_id)
    if told["state"] not in ("running", "finished", "stopped"):
        raise OpsError(
            f"run {run.run_id} is {told['state']} ({told['detail']}) and proves nothing.",
            remedy="promote a run that trains or came to its end",
        )
    speed = comparison.speed_of(run)
    if not speed["steps"] or not speed["tok_s"]:
        raise OpsError(f"run {run.run_id} has not logged a step with a speed yet.", remedy="wait for verify to pass")
    expected = dict(run.record.get("expected") or {})
    least = float(expected.get("tok_s") or 0) * float(expected.get("tolerance") or 1)
    if float(speed["best_tok_s"] or 0) < least:
        raise OpsError(
            f"run {run.run_id} reached {speed['best_tok_s']:.0f} tok/s, and {least:.0f} are needed.",
            remedy="playbooks/compare.yml names what differs from another run",
        )
    if run.record.get("release_dirty") and not allow_dirty:
        raise OpsError(
            f"run {run.run_id} trains release {run.record.get('release_id')}, which is no commit.",
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
    """Tell whether promote.yml would take this run."""
    try:
        entry_of(layout, run, by="")
    except OpsError:
        return False
    return True


def promoted(layout: Layout, run_id: str) -> bool:
    """Tell whether this run is the known-good one already."""
    now = latest(layout)
    return bool(now and now["run_id"] == run_id)


def promote(layout: Layout, entry: dict[str, Any]) -> None:
    """Add an entry; an earlier one of the same run moves to the end."""
    book = read(layout)
    book["history"] = [*(item for item in book["history"] if item["run_id"] != entry["run_id"]), entry]
    files.write_json(layout.known_good, book)


def mark(layout: Layout, *, bad: Sequence[str], good: str = "") -> None:
    """Mark runs so that no rollback chooses them by itself; the one that was chosen now loses its mark."""
    book = read(layout)
    book["bad"] = sorted({*book["bad"], *bad} - {good})
    files.write_json(layout.known_good, book)


def source_of(run: runs.Run) -> str:
    """Return the run that `run` was rolled back to, or its own id."""
    return runs.rolled_back_to(run) or run.run_id


def plan_rollback(layout: Layout, wanted: str = "") -> dict[str, Any]:
    """Choose what to go back to.

    Returns:
        `{"entry": entry or None, "bad": [run ids to mark], "reason": str}`; no entry: there is nothing to do.

    Raises:
        OpsError: nothing to go back to, or the named run is none that can be relaunched.
    """
    current = runs.current(layout)
    if wanted:
        entry = next((item for item in read(layout)["history"] if item["run_id"] == wanted), None)
        if entry is None:
            run = runs.load(layout, wanted)
            entry = {"run_id": wanted, **{key: run.record.get(key) for key in KEPT_KEYS}}
        left = [current.run_id] if current and source_of(current) != wanted else []
        return {"entry": entry, "bad": left, "reason": f"run={wanted} was asked for"}
    entries = good_entries(layout)
    if not entries:
        raise OpsError(
            "there is no known-good run to go back to.", remedy="promote one first, or name one with -e run=ID"
        )
    if current is None:
        return {"entry": entries[-1], "bad": [], "reason": "no run is current"}
    promoted_itself = current.run_id in [item["run_id"] for item in entries]
    source = current.run_id if promoted_itself else source_of(current)
    if source != entries[-1]["run_id"]:
        return {"entry": entries[-1], "bad": [current.run_id], "reason": f"the last known-good before {current.run_id}"}
    return _one_further(current, entries)


def _one_further(current: runs.Run, entries: list[dict[str, Any]]) -> dict[str, Any]:
    """The current run is the known-good one: go one further back, or stay when there is nothing before it."""
    if len(entries) > 1:
        return {
            "entry": entries[-2],
            "bad": sorted({current.run_id, entries[-1]["run_id"]}),
            "reason": f"{current.run_id} is the known-good one itself, so the one before it",
        }
    if status.verdict(current).state in status.LIVE:
        return {"entry": None, "bad": [], "reason": f"{current.run_id} already runs the only known-good state"}
    return {"entry": entries[-1], "bad": [], "reason": "the only known-good state, which does not run now"}
