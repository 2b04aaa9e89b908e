"""How long nothing trains when a run is stopped for one whose compile cache is not warm: told before the stop."""

from __future__ import annotations

from typing import Any

from ..compile_cache import cache
from ..compile_cache.cache import CacheKey, CacheState
from ..core import durations, files
from ..core.paths import Layout
from ..run import run_processes


def told(layout: Layout, where: CacheKey | None, now: CacheState | None, *, wipe: bool = False) -> str:
    """Say that the run that lives will be down while the cache is prewarmed; empty when nothing has to wait."""
    alive = sorted(run_processes.all_living(layout))
    if not alive or where is None or now is None or not where.compiles or (now.warm and not wipe):
        return ""
    why = "is to be made anew (compile_cache_wipe)" if wipe else f"is {now.state} ({now.reason})"
    return (
        f"run {alive[-1]} is down from the stop to the launch: the compile cache {why}, and is prewarmed in between; "
        f"{last_time(layout, where)}"
    )


def last_time(layout: Layout, where: CacheKey) -> str:
    """Say how long a prewarm lasted here the last time: of these very shapes, else of this cache, else of any."""
    for name, prefix in (
        ("the last one of these shapes", where.job_id()),
        ("the last one of this cache", cache.job_prefix(where.cache_id)),
        ("the last one on this box, of another cache,", cache.JOB_PREFIX),
    ):
        lasted = [row for row in _prewarms(layout, prefix) if row["result"].get("changed")]
        if lasted:
            newest = max(lasted, key=lambda row: float(row["finished_at"]))
            return f"{name} lasted {durations.format_duration(newest['seconds'])}"
    return "none was made on this box yet, so how long is not known"


def _prewarms(layout: Layout, prefix: str) -> list[dict[str, Any]]:
    """Return how the prewarms of this prefix ended that came to their end."""
    ends = [files.read_json(folder / "exit.json") for folder in layout.jobs.glob(f"{prefix}*")]
    return [end for end in ends if isinstance(end, dict) and end.get("ok") and isinstance(end.get("result"), dict)]
