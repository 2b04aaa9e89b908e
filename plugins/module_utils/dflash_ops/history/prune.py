"""Removal of old runs, environments, releases, caches and jobs.

Nothing is removed that is running, current, known-good, or used by a kept run.
"""

from __future__ import annotations

import dataclasses
import os
import shutil
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from .. import resolved_config
from ..compile_cache import backup, prewarm
from ..core.errors import OpsError
from ..core.paths import Layout
from ..environment import inspection
from ..run import run_processes, runs
from . import known_good

LEFTOVER_AGE = 86400.0
MARKERS = {"env_id": "env.json", "release_id": "release.json", "cache_id": "cache.json"}  # written last


@dataclasses.dataclass(frozen=True)
class Plan:
    """Paths to remove and paths to keep, each with the reason."""

    remove: tuple[tuple[Path, str], ...]
    keep: tuple[tuple[Path, str], ...]

    def as_dict(self) -> dict[str, Any]:
        """Return the plan as JSON data, with the size of each path to remove."""
        return {
            "remove": [{"path": str(path), "reason": reason, "bytes": size_of(path)} for path, reason in self.remove],
            "keep": [{"path": str(path), "reason": reason} for path, reason in self.keep],
        }


def size_of(path: Path) -> int:
    """Return the size of a file or folder in bytes."""
    if path.is_symlink() or not path.exists():
        return 0
    if path.is_file():
        return path.stat().st_size
    return sum((Path(folder) / name).lstat().st_size for folder, _, names in os.walk(path) for name in names)


def plan(layout: Layout, *, keep_runs: int, now: float | None = None) -> Plan:
    """Plan the removal of runs beyond the newest `keep_runs`, and of everything that only they need.

    Args:
        layout: the box.
        keep_runs: number of newest runs to keep.
        now: current time (epoch seconds).

    Raises:
        OpsError: `keep_runs` is below 1, or a record cannot be read.
    """
    if keep_runs < 1:
        raise OpsError(f"prune_keep_runs is {keep_runs}.", remedy="keep at least 1")
    kept = kept_runs(layout, keep_runs)
    keep = [(runs.folder_of(layout, run_id), reason) for run_id, reason in kept.items()]
    remove = [
        (layout.run(run_id), "older than the kept runs") for run_id in runs.run_ids(layout) if run_id not in kept
    ]
    for kind, marker in MARKERS.items():
        needed = needed_ids(layout, kept, kind)
        for path in _folders(_parent(layout, kind)):
            reason = needed.get(_id_of(path)) or _reason_to_keep(layout, path, kind)
            if reason:
                keep.append((path, reason))
            elif (path / marker).is_file() or _old(path, now):
                remove.append((path, "no kept run needs it"))
    staying = {path.name for path, _ in keep if path.parent == layout.releases}
    remove += [
        (path, "resolved configuration of a release that is gone")
        for path in _files(layout.configs)
        if resolved_config.release_of(path) not in staying
    ]
    needed = needed_ids(layout, kept, "cache_id")
    remove += [
        (path, "archive of a cache that no kept run needs")
        for path in _files(layout.archives)
        if path.name.split(".")[0] not in needed
    ]
    remove += [(path, "left by an interrupted build") for path in leftovers(layout, now)]
    remove += [(path, "an ended job") for path in _old_jobs(layout, now)]
    return Plan(tuple(remove), tuple(keep))


def _reason_to_keep(layout: Layout, path: Path, kind: str) -> str:
    """Return the reason to keep a folder that no kept run needs; empty when there is none."""
    if kind == "cache_id" and prewarm.is_locked(layout, _id_of(path)):
        return "a prewarm is running in it"
    if kind == "env_id" and inspection.processes_using(path):
        return "a process uses it"
    return ""


def kept_runs(layout: Layout, count: int) -> dict[str, str]:
    """Return the runs to keep as `{run_id: reason}`."""
    kept = dict.fromkeys(runs.run_ids(layout)[-count:], f"one of the newest {count}")
    for entry in known_good.good_entries(layout):
        kept[entry["run_id"]] = "known-good"
    current = runs.current(layout)
    if current is not None:
        kept[current.run_id] = "current"
    for run_id in run_processes.running_processes(layout):
        kept[run_id] = "its processes are running"
    sources = [str(run.record.get("resume_from") or "") for run in _existing(layout, kept)]
    for source in filter(None, sources):
        kept.setdefault(source, "a kept run resumed from its checkpoint")
    return kept


def _existing(layout: Layout, run_ids: Iterable[str]) -> list[runs.Run]:
    return [
        runs.load(layout, run_id) for run_id in run_ids if (runs.folder_of(layout, run_id) / "run.json").is_file()
    ]


def needed_ids(layout: Layout, kept: Iterable[str], kind: str) -> dict[str, str]:
    """Return the environment, release or cache ids in use as `{id: reason}`."""
    needed = {str(run.record.get(kind)): f"run {run.run_id} needs it" for run in _existing(layout, kept)}
    for entry in known_good.good_entries(layout):
        needed[str(entry.get(kind))] = "a known-good run needs it"
    newest = _newest(layout, kind)
    if newest:
        needed.setdefault(newest, "the newest one; a launch may be about to use it")
    return needed


def _parent(layout: Layout, kind: str) -> Path:
    return {"env_id": layout.envs, "release_id": layout.releases, "cache_id": layout.caches}[kind]


def _newest(layout: Layout, kind: str) -> str:
    found = [path for path in _folders(_parent(layout, kind)) if (path / MARKERS[kind]).is_file()]
    return _id_of(max(found, key=lambda path: path.stat().st_mtime)) if found else ""


def _id_of(path: Path) -> str:
    """Return the id of a folder; the old copy of a cache that is being wiped keeps the id of the cache."""
    return path.name.removesuffix(backup.SUFFIX)


def _folders(folder: Path) -> list[Path]:
    return (
        sorted(path for path in folder.iterdir() if path.is_dir() and not path.name.startswith("."))
        if folder.is_dir()
        else []
    )


def _files(folder: Path) -> list[Path]:
    return sorted(path for path in folder.iterdir() if path.is_file()) if folder.is_dir() else []


def _old(path: Path, now: float | None) -> bool:
    return (time.time() if now is None else now) - path.stat().st_mtime > LEFTOVER_AGE


def leftovers(layout: Layout, now: float | None = None) -> list[Path]:
    """Return half-built and replaced folders that are more than a day old and that no process uses.

    A run that was running during a heal keeps using the replaced environment until it ends.
    """
    tops = (layout.envs, layout.releases, layout.caches, layout.runs)
    hidden = [
        path for top in tops if top.is_dir() for path in top.iterdir() if path.name.startswith(".") and path.is_dir()
    ]
    return [path for path in hidden if _old(path, now) and not inspection.processes_using(path)]


def _old_jobs(layout: Layout, now: float | None) -> list[Path]:
    return [path for path in _folders(layout.jobs) if (path / "exit.json").is_file() and _old(path / "exit.json", now)]


def apply(found: Plan) -> None:
    """Remove the paths of a plan; each folder is renamed first, so that no reader sees a part of it."""
    for path, _ in found.remove:
        if path.is_dir() and not path.is_symlink():
            doomed = path.with_name(f".removing-{path.name.lstrip('.')}")
            os.rename(path, doomed)
            shutil.rmtree(doomed, onerror=_make_writable)
        else:
            path.unlink(missing_ok=True)


def _make_writable(function: Any, path: str, _error: Any) -> None:
    """Make a read-only file or folder writable and retry its removal."""
    Path(path).parent.chmod(0o700)
    Path(path).chmod(0o700)
    function(path)
