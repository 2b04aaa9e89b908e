"""The detached work on a compile cache: restore, prewarm and prove, pack."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..core import disk
from ..core.jobs import Progress
from ..core.paths import Layout
from ..run.trainer_command import Selection
from . import cache_archive, prewarm
from .cache import CacheKey
from .prewarm import Archive

ENTRY = "compile_cache.prewarm_job:job"


def arguments(
    layout: Layout,
    selection: Selection,
    key: CacheKey,
    *,
    wipe: bool = False,
    archive: bool = False,
    restore: str = "",
    restore_required: bool = True,
) -> dict[str, Any]:
    """Return what the job gets, as JSON."""
    return {
        "root": str(layout.root),
        "workspace": str(layout.workspace),
        "wipe": wipe,
        "archive": archive,
        "restore": restore,
        "restore_required": restore_required,
        "selection": dataclasses.asdict(selection),
        "cache_key": dataclasses.asdict(key),
    }


def name(key: CacheKey, told: Mapping[str, Any]) -> str:
    """Name the job: one for one piece of work, so that nobody attaches to less than was asked."""
    return key.job_id(*(word for word in ("wipe", "archive", "restore") if told[word]))


def job(told: Mapping[str, Any], progress: Progress) -> dict[str, Any]:
    """Entry of the job."""
    layout = Layout.of(told["root"], told["workspace"])
    key, chosen = CacheKey(**told["cache_key"]), dict(told["selection"])
    chosen["overrides"] = tuple(chosen["overrides"])
    chosen["extra"] = tuple((name, value) for name, value in chosen["extra"])
    archive = Archive(Path(told["restore"]), required=told["restore_required"]) if told["restore"] else None
    made = prewarm.prewarm(layout, Selection(**chosen), key, progress, wipe=bool(told["wipe"]), archive=archive)
    if told["archive"] and not cache_archive.is_current(layout, key):
        with prewarm.cache_lock(layout, key.cache_id, progress):
            note = cache_archive.pack(layout, key)
        progress.say(f"packed {note['path']}: {disk.format_bytes(note['bytes'])}, sha256 {note['sha256'][:12]}")
        made = {**made, "changed": True}
    packed = cache_archive.find(layout, key.cache_id)
    return {**made, "shape_id": key.shape_id, "hardware": key.hardware, "archive": str(packed or "")}
