"""Promotion of a run to known-good, with an archive of its compile cache."""

from __future__ import annotations

from typing import Any

from ..compile_cache import cache, cache_archive
from ..core.paths import Layout
from ..history import known_good
from ..run import runs


def promote(
    layout: Layout, run_id: str, *, operator: str, check_mode: bool, allow_dirty: bool = False
) -> dict[str, Any]:
    """Record a run as known-good; return the module's result.

    Raises:
        OpsError: the run cannot be promoted.
    """
    run = runs.require(layout, run_id)
    before = known_good.latest(layout)
    if known_good.promoted(layout, run.run_id):
        return {"changed": False, "entry": before, "message": f"run {run.run_id} is already known-good"}
    entry = known_good.entry_of(layout, run, by=operator, allow_dirty=allow_dirty)
    if not check_mode:
        entry["archive"] = pack(layout, run)
        known_good.promote(layout, entry)
    verb = "would be" if check_mode else "is"
    was = f"{before['run_id']}\n" if before else ""
    return {
        "changed": True,
        "entry": entry,
        "diff": {"before": was, "after": f"{run.run_id}\n"},
        "message": f"run {run.run_id} {verb} known-good now: {entry['speed']['best_tok_s']} tok/s",
    }


def pack(layout: Layout, run: runs.Run) -> str:
    """Pack the run's compile cache; return the archive's path, or an empty string without a checked cache."""
    where = cache.recorded_key(run.record)
    if not where.cache_id or not cache_archive.is_packable(layout, where):
        return ""
    if not cache_archive.is_current(layout, where):
        cache_archive.pack(layout, where)
    return str(cache_archive.find(layout, where.cache_id) or "")
