"""From what an operator asked of the compile cache to a job, or to the sentence that says it is warm."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from . import cache, cache_archive, cache_job, gpus, jobs, living, trainer_command
from .launch_request import selection_of
from .paths import Layout


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
            "proof": {},
            "archive": "",
            "said": "would prewarm once environment and release are there",
        }
    where = cache.place(layout, selection, trainer_command.resolved(layout, selection), gpus.survey())
    now = cache.look(layout, where)
    packed = cache_archive.find(layout, where.cache_id)
    pack = want["archive"] and not (now.warm and cache_archive.current(layout, where))
    work = not now.warm or want["wipe"] or pack
    result = {
        "cache_id": where.cache_id,
        "shape_id": where.shape_id,
        "hardware": where.hardware,
        **now.as_dict(),
        "archive": str(packed or ""),
        "said": f"cache {where.cache_id} is {now.state}: {now.reason}",
        "diff": {"before": f"{where.cache_id} {now.state}\n", "after": f"{where.cache_id} warm\n"},
    }
    if not work:
        unused = "; the archive was not needed" if want["restore"] and want["restore_required"] else ""
        return {**result, "changed": False, "said": result["said"] + unused}
    if want["beside"] == "leave" and living.all_living(layout) and not want["wipe"]:
        return {**result, "changed": False, "said": result["said"] + "; left alone while a run lives"}
    cache.refuse_foreign(now, layout.cache(where.cache_id))
    if not (now.warm and not want["wipe"]):
        cache.refuse_beside_a_run(layout, now, wipe=want["wipe"])
    if check_mode or not want["start"]:
        return {**result, "changed": check_mode, "said": result["said"] + "; would be warmed and proved"}
    words = ("wipe", "archive", "restore", "restore_required")
    told = cache_job.arguments(layout, selection, where, **{word: want[word] for word in words})
    job = jobs.start_or_attach(
        layout, cache_job.name(where, told), "cache_job:job", told, title=f"warm compile cache {where.cache_id}"
    )
    return {**result, "job": job.as_dict()}
