"""Detached job on a compile cache: restore, prewarm, check and pack."""

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
    """Return the job's arguments, as JSON values."""
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


def name(key: CacheKey, arguments: Mapping[str, Any]) -> str:
    """Return the name of the job; it includes the options, so that no caller attaches to a job that does less."""
    return key.job_id(*(option for option in ("wipe", "archive", "restore") if arguments[option]))


def job(arguments: Mapping[str, Any], progress: Progress) -> dict[str, Any]:
    """Run the job: entry point for the job runner."""
    layout = Layout.of(arguments["root"], arguments["workspace"])
    key, fields = CacheKey(**arguments["cache_key"]), dict(arguments["selection"])
    fields["overrides"] = tuple(fields["overrides"])
    fields["extra"] = tuple((name, value) for name, value in fields["extra"])
    selection = Selection(**fields)
    restore = arguments["restore"]
    archive = Archive(Path(restore), required=arguments["restore_required"]) if restore else None
    result = prewarm.prewarm(layout, selection, key, progress, wipe=bool(arguments["wipe"]), archive=archive)
    if arguments["archive"] and not cache_archive.is_current(layout, key):
        with prewarm.cache_lock(layout, key.cache_id, progress):
            packed = cache_archive.pack(layout, key)
        progress.say(f"packed {packed['path']}: {disk.format_bytes(packed['bytes'])}, sha256 {packed['sha256'][:12]}")
        result = {**result, "changed": True}
    path = cache_archive.find(layout, key.cache_id)
    return {**result, "shape_id": key.shape_id, "hardware": key.hardware, "archive": str(path or "")}
