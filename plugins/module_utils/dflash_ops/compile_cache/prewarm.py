"""How a compile cache is made and proved, and what happens when what lies there does not work."""

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import getpass
import os
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from ..core import disk, files, jobs
from ..core.errors import OpsError
from ..core.jobs import Progress
from ..core.paths import Layout
from ..run.trainer_command import Selection
from . import backup, cache, cache_archive, manifest
from .cache import CacheKey
from .warmup import WarmupError, warm_up

NEEDED_BYTES = 2 * disk.GIB


@dataclasses.dataclass(frozen=True)
class Archive:
    """An archive to begin with.

    Args:
        path: the file on this box.
        required: refuse to go on without it; else what speaks against it is said, and all of it compiled.
    """

    path: Path
    required: bool = True


@dataclasses.dataclass(frozen=True)
class Prewarm:
    """One piece of work on one cache.

    Args:
        layout: the box.
        selection: what gets compiled.
        key: the cache and the part of it.
        progress: key it is told.
    """

    layout: Layout
    selection: Selection
    key: CacheKey
    progress: Progress

    @property
    def folder(self) -> Path:
        return self.layout.cache(self.key.cache_id)

    def warm_up(self, name: str) -> dict[str, Any]:
        return warm_up(self.layout, self.selection, self.folder, self.progress, name=name)


def prewarm(
    layout: Layout,
    selection: Selection,
    key: CacheKey,
    progress: Progress,
    *,
    wipe: bool = False,
    archive: Archive | None = None,
) -> dict[str, Any]:
    """Make the cache warm for `selection` and prove it by a process of its own.

    A second caller waits for the first, then finds it warm. Files that are not what the record says are dropped and
    made again. When a process fails over what is there, all of it is made anew once; the old cache is set aside when
    that worked, and put back when that failed as well.

    Raises:
        OpsError: no space, a cache of another user, an archive that does not fit, or a WarmupError from an empty cache.
    """
    work = Prewarm(layout, selection, key, progress)
    with cache_lock(layout, key.cache_id, progress):
        terminate_orphans(layout, key.cache_id)
        if backup.recover(work.folder):
            progress.say("an earlier wipe or restore was killed; the cache as it was before is back")
        before = cache.inspect(layout, key)
        cache.require_owned(before, work.folder)
        if before.warm and not wipe:
            progress.say(f"cache {key.cache_id} is warm: {before.reason}")
            return {"state": "warm", "changed": False, "cache_id": key.cache_id, "proof": dict(before.proof)}
        _require_space(layout)
        progress.say(f"cache {key.cache_id} is {before.state}: {before.reason}")
        if wipe:
            progress.say(f"making it anew; the old one stays until the new one is proved. {cache.WIPE_ADVICE}")
            with backup.replacing(work.folder):
                return _fill_and_check(work, cold=True)
        made = _restore(work, archive) if archive else None
        return made or _refill(work, before)


def _require_space(layout: Layout) -> None:
    disk.require_space(
        layout.caches,
        NEEDED_BYTES,
        what="the compile cache",
        remedy="free space (prune.yml) or put dflash_root on a larger mount",
    )


def terminate_orphans(layout: Layout, cache_id: str) -> None:
    """End what killed prewarms of this cache left behind: nobody else may write into it now."""
    for folder in layout.jobs.glob(f"{cache.job_prefix(cache_id)}*"):
        if jobs.state_of(folder) == "dead":
            jobs.terminate_leftovers(layout, folder.name)


def _restore(work: Prewarm, archive: Archive) -> dict[str, Any] | None:
    """Prove what an archive holds, in the place of what was there; None when that did not work, which was said."""
    try:
        with backup.replacing(work.folder) as old:
            cache_archive.unpack(archive.path, work.key, work.folder, old)
            work.progress.say(f"restored {archive.path}; a process of this box now has to find all of it")
            made_in = manifest.read_record(work.folder).get("folder")
            if made_in not in (None, str(work.folder)):
                work.progress.say(f"it was made in {made_in}: what depends on that path is compiled again")
            return _fill_and_check(work, cold=False)
    except WarmupError as error:
        if error.unrelated:
            raise
        work.progress.say(f"what {archive.path} holds does not work here ({error.message}); going on without it")
    except OpsError as error:
        if archive.required:
            raise
        work.progress.say(f"{error.message} Going on without it")
    return None


def _refill(work: Prewarm, before: cache.CacheState) -> dict[str, Any]:
    """Add to the cache what it lacks; when a process fails over what it holds, make it anew once."""
    for name in before.damaged:
        (work.folder / name).unlink(missing_ok=True)
        work.progress.say(f"dropped {name}: it is damaged")
    cold = not manifest.has_files(work.folder)
    try:
        return _fill_and_check(work, cold=cold)
    except WarmupError as error:
        if cold or error.unrelated:
            raise
        aside = work.folder.with_name(f"{work.folder.name}.damaged-{int(time.time())}")
        work.progress.say(
            f"the cache as it was does not work ({error.message}); made anew once, and set aside as {aside.name} "
            "when that works"
        )
    with backup.replacing(work.folder) as old:
        made = _fill_and_check(work, cold=True)
        os.rename(old, aside)
    return made


@contextlib.contextmanager
def cache_lock(layout: Layout, cache_id: str, progress: Progress) -> Iterator[None]:
    """Be the only one who makes this cache."""
    layout.caches.mkdir(parents=True, exist_ok=True)
    handle = os.open(layout.caches / f".{cache_id}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            progress.say(f"another prewarm works on cache {cache_id}; waiting for it")
            fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


def is_locked(layout: Layout, cache_id: str) -> bool:
    """Tell whether somebody makes this cache now."""
    try:
        handle = os.open(layout.caches / f".{cache_id}.lock", os.O_RDWR | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(handle)
    return False


def _fill_and_check(work: Prewarm, *, cold: bool) -> dict[str, Any]:
    """Warm up, then let a second process judge; write cache.json only after that.

    A first process that misses nothing and makes no file is the judge itself, as it found all that another one made.
    What its counters say is not enough: a kernel of C++ that is compiled again is no miss to them.
    """
    folder = work.folder
    folder.mkdir(parents=True, exist_ok=True)
    there = set(manifest.content_files(folder))
    first = work.warm_up("cold" if cold else "again")
    made = set(manifest.content_files(folder)) - there
    if not made and (first["misses"] == 0 or not there):
        proof, filled = first, None
    else:
        work.progress.say(
            f"compiled in {first['seconds']:.1f} s ({first['misses']} misses, {len(made)} files); "
            "a second process has to find all of it"
        )
        files.write_json(_cold_time_file(work), {"seconds": first["seconds"]})
        proof, filled = work.warm_up("proof"), first
    if proof["misses"]:
        raise WarmupError(
            f"cache {work.key.cache_id} is not warm: a second process had {proof['misses']} misses "
            f"({_counters(proof)}).",
            remedy="look for `Bypassing FX Graph Cache` in the job's log; the shapes must not depend on the process",
        )
    record = _record(work, proof=proof, filled=filled)
    files.write_json(folder / manifest.RECORD, record)
    _cold_time_file(work).unlink(missing_ok=True)
    shape = record["shapes"][work.key.shape_id]
    size = sum(row[0] for row in record["files"].values())
    bypassed = f", {shape['bypassed']} graphs bypass it and compile at every start" if shape["bypassed"] else ""
    work.progress.say(f"cache {work.key.cache_id} is warm: {format_timing(shape)}, 0 misses, {disk.format_bytes(size)}{bypassed}")
    return {"state": "warm", "changed": True, "cache_id": work.key.cache_id, "proof": shape}


def _cold_time_file(work: Prewarm) -> Path:
    """Return key the time of a first process waits for the proof; a prewarm that is killed in between needs it."""
    return work.folder / f".compiled-{work.key.shape_id}.tmp"


def format_timing(shape: Mapping[str, Any]) -> str:
    """Say both times of a proof; key all was found, made by another box or for other code, there is no first one."""
    cold, warm = shape.get("cold_seconds"), shape.get("warm_seconds")
    return (f"cold {cold:.1f} s, " if isinstance(cold, (int, float)) else "nothing to compile, ") + f"warm {warm:.1f} s"


def _counters(report: Mapping[str, Any]) -> str:
    return ", ".join(f"{name} {value}" for name, value in dict(report.get("counters") or {}).items())


def _cold_seconds(work: Prewarm, filled: Mapping[str, Any] | None, earlier: Mapping[str, Any]) -> float | None:
    """Return how long these shapes took to compile: as it was first measured, for a refill takes less."""
    waiting = files.read_json(_cold_time_file(work))
    candidates = (earlier.get("cold_seconds"), (waiting or {}).get("seconds"), (filled or {}).get("seconds"))
    return next((float(value) for value in candidates if isinstance(value, (int, float))), None)


def _record(work: Prewarm, *, proof: Mapping[str, Any], filled: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return the new cache.json: earlier shapes stay covered, since entries are addressed by content."""
    key, selection = work.key, work.selection
    old = manifest.read_record(work.folder)
    earlier = dict(old.get("shapes", {}).get(key.shape_id) or {})
    shape = {
        "config": selection.config,
        "overrides": list(selection.overrides),
        "release_id": selection.release_id,
        "cold_seconds": _cold_seconds(work, filled, earlier),
        "warm_seconds": proof["seconds"],
        "load_seconds": proof.get("load_seconds"),
        "misses": proof["misses"],
        "counters": dict(proof.get("counters") or {}),
        "bypassed": int(dict(proof.get("counters") or {}).get("fxgraph_cache_bypass") or 0),
        "covered": [{key: row.get(key) for key in ("device", "worker", "bucket")} for row in proof.get("shapes") or ()],
        "torch": proof.get("torch"),
        "proved_at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
    }
    return {
        "cache_id": key.cache_id,
        "env_id": key.env_id,
        "hardware": key.hardware,
        "folder": str(work.folder),
        "user": getpass.getuser(),
        "uid": os.getuid(),
        "shapes": {**dict(old.get("shapes") or {}), key.shape_id: shape},
        "files": manifest.build(work.folder),
    }
