"""From what an operator asked of the compile cache to a job, or to the sentence that says it is warm."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..compile_cache import cache, cache_archive, prewarm_job
from ..core import gpus, jobs
from ..core.paths import Layout
from ..run import run_processes, trainer_command
from .ensure_run import selection_of


def ensure(layout: Layout, want: Mapping[str, Any], *, check_mode: bool) -> dict[str, Any]:
    """Say how warm the cache is and start the job that is needed; return the module's result.

    Raises:
        OpsError: a run lives and the cache would have to change, or there is no environment or release.
    """
    selection = selection_of(want)
    if check_mode and not layout.is_built(want["env_id"], want["release_id"]):
        return {
            "changed": True,
            "state": "cold",
            "cache_id": "",
            "cache_check": {},
            "archive": "",
            "message": "would prewarm once environment and release are there",
        }
    key = cache.cache_key(layout, selection, trainer_command.resolved(layout, selection), gpus.survey())
    now = cache.inspect(layout, key)
    packed = cache_archive.find(layout, key.cache_id)
    pack = want["archive"] and not (now.warm and cache_archive.is_current(layout, key))
    work = not now.warm or want["wipe"] or pack
    result = {
        "cache_id": key.cache_id,
        "shape_id": key.shape_id,
        "hardware": key.hardware,
        **now.as_dict(),
        "archive": str(packed or ""),
        "message": f"cache {key.cache_id} is {now.state}: {now.reason}",
        "diff": {"before": f"{key.cache_id} {now.state}\n", "after": f"{key.cache_id} warm\n"},
    }
    if not work:
        unused = "; the archive was not needed" if want["restore"] and want["restore_required"] else ""
        return {**result, "changed": False, "message": result["message"] + unused}
    if want["if_running"] == "skip" and run_processes.all_living(layout) and not want["wipe"]:
        return {**result, "changed": False, "message": result["message"] + "; left alone while a run lives"}
    cache.require_owned(now, layout.cache(key.cache_id))
    if not (now.warm and not want["wipe"]):
        cache.require_no_run(layout, now, wipe=want["wipe"])
    if check_mode or not want["start"]:
        return {**result, "changed": check_mode, "message": result["message"] + "; would be warmed and checked"}
    words = ("wipe", "archive", "restore", "restore_required")
    told = prewarm_job.arguments(layout, selection, key, **{word: want[word] for word in words})
    title = f"warm compile cache {key.cache_id}"
    job = jobs.start_or_attach(layout, prewarm_job.name(key, told), prewarm_job.ENTRY, told, title=title)
    return {**result, "job": job.as_dict()}
