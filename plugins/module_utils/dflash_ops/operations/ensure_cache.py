"""Ensure that the compile cache of a configuration is warm, by a prewarm job key that is needed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .. import resolved_config
from ..compile_cache import cache, cache_archive, prewarm_job
from ..core import gpus, jobs
from ..core.paths import Layout
from ..run import run_processes
from .ensure_run import selection_from


def ensure(layout: Layout, params: Mapping[str, Any], *, check_mode: bool) -> dict[str, Any]:
    """Check the compile cache and start a prewarm job when one is needed; return the module's result.

    Raises:
        OpsError: the cache must change while a run is running, or environment or release is missing.
    """
    selection = selection_from(params)
    if check_mode and not layout.is_built(params["env_id"], params["release_id"]):
        return {
            "changed": True,
            "state": "cold",
            "cache_id": "",
            "cache_check": {},
            "archive": "",
            "message": "would prewarm once environment and release exist",
        }
    resolved = resolved_config.resolve(layout, selection, store=not check_mode)
    key = cache.cache_key(layout, selection, resolved, gpus.survey())
    now = cache.inspect(layout, key)
    packed = cache_archive.find(layout, key.cache_id)
    pack = params["archive"] and not (now.warm and cache_archive.is_current(layout, key))
    needed = not now.warm or params["wipe"] or pack
    result = {
        "cache_id": key.cache_id,
        "shape_id": key.shape_id,
        "hardware": key.hardware,
        **now.as_dict(),
        "archive": str(packed or ""),
        "message": f"cache {key.cache_id} is {now.state}: {now.reason}",
        "diff": {"before": f"{key.cache_id} {now.state}\n", "after": f"{key.cache_id} warm\n"},
    }
    if not needed:
        unused = "; the archive was not needed" if params["restore"] and params["restore_required"] else ""
        return {**result, "changed": False, "message": result["message"] + unused}
    if params["if_running"] == "skip" and run_processes.running_processes(layout) and not params["wipe"]:
        return {**result, "changed": False, "message": result["message"] + "; left unchanged while a run is running"}
    cache.require_owned(now, layout.cache(key.cache_id))
    if not (now.warm and not params["wipe"]):
        cache.require_no_run(layout, now, wipe=params["wipe"])
    if check_mode or not params["start"]:
        return {**result, "changed": check_mode, "message": result["message"] + "; would be prewarmed and checked"}
    options = {name: params[name] for name in ("wipe", "archive", "restore", "restore_required")}
    arguments = prewarm_job.arguments(layout, selection, key, **options)
    title = f"warm compile cache {key.cache_id}"
    job = jobs.start_or_attach(layout, prewarm_job.name(key, arguments), prewarm_job.ENTRY, arguments, title=title)
    return {**result, "job": job.as_dict()}
