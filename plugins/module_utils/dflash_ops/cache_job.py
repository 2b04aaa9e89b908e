"""The detached work on a compile cache: restore, prewarm and prove, pack."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from . import cache, cache_archive, space
from .cache import Place
from .jobs import Progress
from .paths import Layout
from .trainer_command import Selection


def arguments(
    layout: Layout, selection: Selection, where: Place, *, wipe: bool = False, archive: bool = False, restore: str = ""
) -> dict[str, Any]:
    """Return what the job gets, as JSON."""
    return {
        "root": str(layout.root),
        "workspace": str(layout.workspace),
        "wipe": wipe,
        "archive": archive,
        "restore": restore,
        "selection": dataclasses.asdict(selection),
        "place": dataclasses.asdict(where),
    }


def job(told: Mapping[str, Any], progress: Progress) -> dict[str, Any]:
    """Entry of the job."""
    layout = Layout.of(told["root"], told["workspace"])
    where, chosen = Place(**told["place"]), dict(told["selection"])
    chosen["overrides"] = tuple(chosen["overrides"])
    chosen["extra"] = tuple((name, value) for name, value in chosen["extra"])
    if told["restore"]:
        with cache.holding(layout, where.cache_id, progress):
            cache_archive.unpack(layout, Path(told["restore"]), where)
        progress.say(f"restored {told['restore']}; a process of this box now has to find all of it")
    made = cache.prewarm(layout, Selection(**chosen), where, progress, wipe=bool(told["wipe"]))
    if told["archive"] and not cache_archive.current(layout, where):
        note = cache_archive.pack(layout, where)
        progress.say(f"packed {note['path']}: {space.human(note['bytes'])}, sha256 {note['sha256'][:12]}")
        made = {**made, "changed": True}
    packed = cache_archive.find(layout, where.cache_id)
    return {**made, "shape_id": where.shape_id, "hardware": where.hardware, "archive": str(packed or "")}
