"""What may be removed from a box, and what never: anything live, current, known-good, or named by a run that stays."""

from __future__ import annotations

import dataclasses
import os
import shutil
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from ..compile_cache import prewarm, swap
from ..core.errors import OpsError
from ..core.paths import Layout
from ..environment import inspection
from ..run import run_processes, runs
from . import known_good

LEFTOVER_AGE = 86400.0


@dataclasses.dataclass(frozen=True)
class Plan:
    """Folders and files to remove, each with the reason, and why the rest stays."""

    remove: tuple[tuple[Path, str], ...]
    keep: tuple[tuple[Path, str], ...]

    def as_dict(self) -> dict[str, Any]:
        return {
            "remove": [{"path": str(path), "reason": reason, "bytes": size_of(path)} for path, reason in self.remove],
            "keep": [{"path": str(path), "reason": reason} for path, reason in self.keep],
        }


def size_of(path: Path) -> int:
    """Return the bytes below `path`."""
    if path.is_symlink() or not path.exists():
        return 0
    if path.is_file():
        return path.stat().st_size
    return sum((Path(folder) / name).lstat().st_size for folder, _, names in os.walk(path) for name in names)


def plan(layout: Layout, *, keep_runs: int, now: float | None = None) -> Plan:
    """Decide what goes: runs beyond the newest `keep_runs`, then what no kept run, known-good or process needs.

    Raises:
        OpsError: `keep_runs` is below 1, or a record that decides cannot be read.
    """
    if keep_runs < 1:
        raise OpsError(f"prune_keep_runs is {keep_runs}.", remedy="keep at least 1")
    kept = kept_runs(layout, keep_runs)
    remove: list[tuple[Path, str]] = []
    keep: list[tuple[Path, str]] = [(runs.folder_of(layout, run_id), reason) for run_id, reason in kept.items()]
    remove += [
        (layout.run(run_id), "older than the runs that are kept")
        for run_id in runs.run_ids(layout)
        if run_id not in kept
    ]
    for kind, folder in (("env_id", layout.envs), ("release_id", layout.releases), ("cache_id", layout.caches)):
        needed = needed_ids(layout, kept, kind)
        for path in _entries(folder):
            name = _name_of(path)
            if name in needed:
                keep.append((path, needed[name]))
            elif kind == "cache_id" and prewarm.busy(layout, name):
                keep.append((path, "a prewarm works on it"))
            elif kind == "env_id" and inspection.processes_using(path):
                keep.append((path, "a process uses it"))
            elif complete(path, kind) or _old(path, now):
                remove.append((path, "no kept run needs it"))
    needed = needed_ids(layout, kept, "cache_id")
    remove += [
        (path, "archive of a cache that nothing needs")
        for path in _files(layout.archives)
        if path.name.split(".")[0] not in needed
    ]
    remove += [(path, "leftover of a broken build") for path in leftovers(layout, now)]
    remove += [(path, "an ended job") for path in _old_jobs(layout, now)]
    return Plan(tuple(remove), tuple(keep))


def kept_runs(layout: Layout, count: int) -> dict[str, str]:
    """Return the runs that stay, with the reason."""
    kept = dict.fromkeys(runs.run_ids(layout)[-count:], f"one of the newest {count}")
    for entry in known_good.good_entries(layout):
        kept[entry["run_id"]] = "known-good"
    current = runs.current(layout)
    if current is not None:
        kept[current.run_id] = "current"
    for run_id in run_processes.all_living(layout):
        kept[run_id] = "its processes live"
    sources = [
        str(runs.load(layout, run_id).record.get("resume_from") or "")
        for run_id in kept
        if (runs.folder_of(layout, run_id) / "run.json").is_file()
    ]
    for source in sources:
        if source:
            kept.setdefault(source, "a kept run goes on from its checkpoint")
    return kept


def needed_ids(layout: Layout, kept: Iterable[str], kind: str) -> dict[str, str]:
    """Return the environment, release or cache ids in use, with the reason."""
    needed: dict[str, str] = {}
    for run_id in kept:
        if (runs.folder_of(layout, run_id) / "run.json").is_file():
            needed[str(runs.load(layout, run_id).record.get(kind))] = f"run {run_id} needs it"
    for entry in known_good.good_entries(layout):
        needed[str(entry.get(kind))] = "known-good needs it"
    newest = _newest(layout, kind)
    if newest:
        needed.setdefault(newest, "the newest one, perhaps not launched yet")
    return needed


def _newest(layout: Layout, kind: str) -> str:
    folder = {"env_id": layout.envs, "release_id": layout.releases, "cache_id": layout.caches}[kind]
    found = [path for path in _entries(folder) if complete(path, kind)]
    return _name_of(max(found, key=lambda path: path.stat().st_mtime)) if found else ""


def _name_of(path: Path) -> str:
    """Return the id of a folder; a cache that waits for the end of a wipe keeps its own."""
    return path.name.removesuffix(swap.OLD)


def complete(path: Path, kind: str) -> bool:
    """Tell whether a folder carries the file that makes it whole."""
    return (path / {"env_id": "env.json", "release_id": "release.json", "cache_id": "cache.json"}[kind]).is_file()


def _entries(folder: Path) -> list[Path]:
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
    """Return half-built and replaced folders that nobody needs: more than a day old, and no process has files of them.

    A run that lives through a heal goes on in the replaced environment for as long as it trains.
    """
    tops = (layout.envs, layout.releases, layout.caches, layout.runs)
    hidden = [
        path for top in tops if top.is_dir() for path in top.iterdir() if path.name.startswith(".") and path.is_dir()
    ]
    return [path for path in hidden if _old(path, now) and not inspection.processes_using(path)]


def _old_jobs(layout: Layout, now: float | None) -> list[Path]:
    return [path for path in _entries(layout.jobs) if (path / "exit.json").is_file() and _old(path / "exit.json", now)]


def apply(found: Plan) -> None:
    """Remove what the plan names: each renamed first, so that nobody sees half of it."""
    for path, _ in found.remove:
        if path.is_dir() and not path.is_symlink():
            doomed = path.with_name(f".removing-{path.name.lstrip('.')}")
            os.rename(path, doomed)
            shutil.rmtree(doomed, onerror=_make_writable)
        else:
            path.unlink(missing_ok=True)


def _make_writable(function: Any, path: str, _error: Any) -> None:
    """Releases and environments may be read-only: open the folder and try again."""
    Path(path).parent.chmod(0o700)
    Path(path).chmod(0o700)
    function(path)
