"""Prewarm of a compile cache: compile, check in a second process, and rebuild a cache that does not work."""

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
SHAPE_FIELDS = ("device", "worker", "bucket")


@dataclasses.dataclass(frozen=True)
class Archive:
    """Archive to restore before the prewarm.

    Args:
        path: the file on this box.
        required: fail without it; otherwise report the reason and compile everything.
    """

    path: Path
    required: bool = True


@dataclasses.dataclass(frozen=True)
class Prewarm:
    """One prewarm of one cache.

    Args:
        layout: the box.
        selection: the configuration to compile.
        key: key of its cache.
        progress: receives the progress lines.
    """

    layout: Layout
    selection: Selection
    key: CacheKey
    progress: Progress

    @property
    def folder(self) -> Path:
        """Folder of the cache."""
        return self.layout.cache(self.key.cache_id)

    def warm_up(self, name: str) -> dict[str, Any]:
        """Run one warm-up process and return its report."""
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
    """Warm the cache for `selection` and check it in a second process.

    A second caller waits for the first, then finds the cache warm. Files that differ from the record are deleted and
    rebuilt. When a process fails because of the cache, the whole cache is rebuilt once: the old cache is quarantined
    if that succeeds and restored if it fails.

    Raises:
        OpsError: no space, a cache of another user, or an archive that does not fit.
        WarmupError: an empty cache could not be warmed either.
    """
    work = Prewarm(layout, selection, key, progress)
    with cache_lock(layout, key.cache_id, progress):
        terminate_orphans(layout, key.cache_id)
        if backup.recover(work.folder):
            progress.say("an earlier wipe or restore was killed; the previous cache is restored")
        before = cache.inspect(layout, key)
        cache.require_owned(before, work.folder)
        if before.warm and not wipe:
            progress.say(f"cache {key.cache_id} is warm: {before.reason}")
            return _result(key, before.cache_check, changed=False)
        _require_space(layout)
        progress.say(f"cache {key.cache_id} is {before.state}: {before.reason}")
        if wipe:
            progress.say(f"rebuilding it; the old one is kept until the new one is checked. {cache.WIPE_ADVICE}")
            with backup.replacing(work.folder):
                return _fill_and_check(work, cold=True)
        restored = _restore(work, archive) if archive else None
        return restored or _refill(work, before)


def _result(key: CacheKey, cache_check: Mapping[str, Any], *, changed: bool) -> dict[str, Any]:
    return {"state": "warm", "changed": changed, "cache_id": key.cache_id, "cache_check": dict(cache_check)}


def _require_space(layout: Layout) -> None:
    disk.require_space(
        layout.caches,
        NEEDED_BYTES,
        what="the compile cache",
        remedy="free space (playbooks/prune.yml) or put dflash_root on a larger mount",
    )


def terminate_orphans(layout: Layout, cache_id: str) -> None:
    """Terminate processes left by killed prewarms of this cache, which could still write to it."""
    for folder in layout.jobs.glob(f"{cache.job_prefix(cache_id)}*"):
        if jobs.state_of(folder) == "dead":
            jobs.terminate_leftovers(layout, folder.name)


def _restore(work: Prewarm, archive: Archive) -> dict[str, Any] | None:
    """Restore and check an archive; return None after reporting the reason when it cannot be used."""
    try:
        with backup.replacing(work.folder) as old:
            cache_archive.unpack(archive.path, work.key, work.folder, old)
            work.progress.say(f"restored {archive.path}; checking it in a process of this box")
            origin = manifest.read_record(work.folder).get("folder")
            if origin not in (None, str(work.folder)):
                work.progress.say(f"it was built in {origin}: kernels that depend on the path are compiled again")
            return _fill_and_check(work, cold=False)
    except WarmupError as error:
        if error.unrelated:
            raise
        work.progress.say(f"the cache in {archive.path} does not work here ({error.message}); continuing without it")
    except OpsError as error:
        if archive.required:
            raise
        work.progress.say(f"{error.message} Continuing without it.")
    return None


def _refill(work: Prewarm, before: cache.CacheState) -> dict[str, Any]:
    """Compile the missing shapes; when a process fails because of the cache, rebuild the whole cache once."""
    for name in before.damaged:
        (work.folder / name).unlink(missing_ok=True)
        work.progress.say(f"deleted {name}: it is damaged")
    cold = not manifest.has_files(work.folder)
    try:
        return _fill_and_check(work, cold=cold)
    except WarmupError as error:
        if cold or error.unrelated:
            raise
        quarantine = work.folder.with_name(f"{work.folder.name}.damaged-{int(time.time())}")
        work.progress.say(
            f"the existing cache does not work ({error.message}); rebuilding it once. If that succeeds, "
            f"the existing one is kept as {quarantine.name}"
        )
    with backup.replacing(work.folder) as old:
        result = _fill_and_check(work, cold=True)
        os.rename(old, quarantine)
    return result


@contextlib.contextmanager
def cache_lock(layout: Layout, cache_id: str, progress: Progress) -> Iterator[None]:
    """Hold the lock of a cache, after waiting for another prewarm of it."""
    layout.caches.mkdir(parents=True, exist_ok=True)
    handle = os.open(layout.caches / f".{cache_id}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            progress.say(f"another prewarm of cache {cache_id} is running; waiting for it")
            fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


def is_locked(layout: Layout, cache_id: str) -> bool:
    """Return whether a prewarm of this cache is running."""
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
    """Fill the cache in one process, check it in a second one, then write cache.json.

    A first process that misses nothing and adds no file is itself the check of what an earlier process built. Its
    miss counters are not sufficient, because a recompiled C++ kernel is not counted as a miss.
    """
    folder = work.folder
    folder.mkdir(parents=True, exist_ok=True)
    existing = set(manifest.content_files(folder))
    first = work.warm_up("cold" if cold else "refill")
    added = set(manifest.content_files(folder)) - existing
    if not added and (first["misses"] == 0 or not existing):
        check, filled = first, None
    else:
        work.progress.say(
            f"compiled in {first['seconds']:.1f} s ({first['misses']} misses, {len(added)} files); "
            "checking the cache in a second process"
        )
        files.write_json(_cold_time_file(work), {"seconds": first["seconds"]})
        check, filled = work.warm_up("check"), first
    if check["misses"]:
        raise WarmupError(
            f"Cache {work.key.cache_id} is not warm: a second process had {check['misses']} misses "
            f"({_counters(check)}).",
            remedy="search the job's log for `Bypassing FX Graph Cache`; shapes must not depend on the process",
        )
    return _write_record(work, check=check, filled=filled)


def _write_record(work: Prewarm, *, check: Mapping[str, Any], filled: Mapping[str, Any] | None) -> dict[str, Any]:
    """Write cache.json, report the times and return the result."""
    record = _record(work, check=check, filled=filled)
    files.write_json(work.folder / manifest.RECORD, record)
    _cold_time_file(work).unlink(missing_ok=True)
    shape = record["shapes"][work.key.shape_id]
    size = disk.format_bytes(sum(row[0] for row in record["files"].values()))
    bypassed = f", {shape['bypassed']} graphs bypass it and compile at every start" if shape["bypassed"] else ""
    work.progress.say(f"cache {work.key.cache_id} is warm: {format_timing(shape)}, 0 misses, {size}{bypassed}")
    return _result(work.key, shape, changed=True)


def _cold_time_file(work: Prewarm) -> Path:
    """Return the file that keeps the compile time until the check, in case the prewarm is killed in between."""
    return work.folder / f".compiled-{work.key.shape_id}.tmp"


def format_timing(shape: Mapping[str, Any]) -> str:
    """Return the cold and the warm time as text, without the cold time when nothing had to be compiled."""
    cold, warm = shape.get("cold_seconds"), shape.get("warm_seconds")
    return (f"cold {cold:.1f} s, " if isinstance(cold, (int, float)) else "nothing to compile, ") + f"warm {warm:.1f} s"


def _counters(report: Mapping[str, Any]) -> str:
    return ", ".join(f"{name} {value}" for name, value in dict(report.get("counters") or {}).items())


def _cold_seconds(work: Prewarm, filled: Mapping[str, Any] | None, earlier: Mapping[str, Any]) -> float | None:
    """Return the first measured compile time of these shapes, because a refill takes less time."""
    pending = files.read_json(_cold_time_file(work))
    candidates = (earlier.get("cold_seconds"), (pending or {}).get("seconds"), (filled or {}).get("seconds"))
    return next((float(value) for value in candidates if isinstance(value, (int, float))), None)


def _record(work: Prewarm, *, check: Mapping[str, Any], filled: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return the new cache.json; earlier shapes stay covered, because entries are addressed by content."""
    key, selection = work.key, work.selection
    old = manifest.read_record(work.folder)
    earlier = dict(old.get("shapes", {}).get(key.shape_id) or {})
    shape = {
        "config": selection.config,
        "overrides": list(selection.overrides),
        "release_id": selection.release_id,
        "cold_seconds": _cold_seconds(work, filled, earlier),
        "warm_seconds": check["seconds"],
        "load_seconds": check.get("load_seconds"),
        "misses": check["misses"],
        "counters": dict(check.get("counters") or {}),
        "bypassed": int(dict(check.get("counters") or {}).get("fxgraph_cache_bypass") or 0),
        "covered": [{name: row.get(name) for name in SHAPE_FIELDS} for row in check.get("shapes") or ()],
        "torch": check.get("torch"),
        "checked_at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
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
