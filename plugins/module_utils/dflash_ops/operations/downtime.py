"""Estimate of the downtime of a relaunch or rollback whose compile cache is cold."""

from __future__ import annotations

from typing import Any

from ..compile_cache import cache
from ..compile_cache.cache import CacheKey, CacheState
from ..core import durations, files
from ..core.paths import Layout
from ..run import run_processes


def message(layout: Layout, key: CacheKey | None, state: CacheState | None, *, wipe: bool = False) -> str:
    """Return a note that the running run will be down during a prewarm; empty when no prewarm is needed."""
    running = sorted(run_processes.running_processes(layout))
    if not running or key is None or state is None or not key.compiles or (state.warm and not wipe):
        return ""
    why = "will be rebuilt (compile_cache_wipe)" if wipe else f"is {state.state} ({state.reason})"
    return (
        f"run {running[-1]} will be down from the stop until the launch: the compile cache {why} and is prewarmed in "
        f"between; {last_prewarm(layout, key)}"
    )


def last_prewarm(layout: Layout, key: CacheKey) -> str:
    """Return how long the last prewarm took: of the same shapes, else of the same cache, else of any cache."""
    for name, prefix in (
        ("of these shapes", key.job_id()),
        ("of this cache", cache.job_prefix(key.cache_id)),
        ("on this box, of another cache,", cache.JOB_PREFIX),
    ):
        prewarms = [end for end in _prewarms(layout, prefix) if end["result"].get("changed")]
        if prewarms:
            newest = max(prewarms, key=lambda end: float(end["finished_at"]))
            return f"the last prewarm {name} took {durations.format_duration(newest['seconds'])}"
    return "no prewarm has run on this box yet, so the duration is unknown"


def _prewarms(layout: Layout, prefix: str) -> list[dict[str, Any]]:
    """Return the manifest of exit.json of the successful prewarms with this prefix."""
    ends = [files.read_json(folder / "exit.json") for folder in layout.jobs.glob(f"{prefix}*")]
    return [end for end in ends if isinstance(end, dict) and end.get("ok") and isinstance(end.get("result"), dict)]
