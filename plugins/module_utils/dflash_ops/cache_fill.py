"""What later builds save time with is kept after an environment is in place, not before: uv's cache, and bytecode.

uv unpacks wheels into its cache and copies them from there, so a first build writes everything twice. Here it gets an
empty cache of its own beside the environments and may link from it: nothing else ever reads that folder. When the
environment is in place, a job of low priority copies the folder to where the cache belongs and removes it. From then on
the environment shares no file with anything. The same job packs the bytecode that the proof made.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

from . import bytecode, jobs
from .errors import OpsError
from .fingerprint import scan
from .jobs import Progress
from .paths import Layout

ENTRY = "cache_fill:keep"
JOB_PREFIX = "uv-cache-"


def is_filled(cache: Path) -> bool:
    """Tell whether anything is unpacked in a cache of uv."""
    return cache.is_dir() and any(cache.glob("archive-v*/*"))


def first_cache(layout: Layout, env_id: str) -> Path:
    """Return the cache that the first build of an environment has for itself; it lies on the environments' mount."""
    return layout.envs / f".cache-{env_id}"


def choose(layout: Layout, env_id: str, cache: Path, progress: Progress) -> Path:
    """Return the cache for a build: the box's when it is filled, else a new one of its own."""
    wait(layout, progress)
    for left in layout.envs.glob(".cache-*"):
        other = left.name.removeprefix(".cache-")
        if other == env_id or jobs.state_of(layout.job(f"env-{other}")) != "running":
            take_over(left, cache)
    return cache if is_filled(cache) else first_cache(layout, env_id)


def take_over(left: Path, cache: Path) -> None:
    """Let what a broken build fetched become the cache; what an environment may be sharing files with goes."""
    if not is_filled(cache) and not is_shared(left):
        cache.mkdir(parents=True, exist_ok=True)
        place(left, cache)
    else:
        shutil.rmtree(left)


def is_shared(cache: Path) -> bool:
    """Tell whether a file in a cache has another name elsewhere."""
    return any(stat.st_nlink > 1 for stat in scan(cache).values())


def wait(layout: Layout, progress: Progress) -> None:
    """Wait until no earlier build is still filling the cache."""
    for folder in layout.jobs.glob(f"{JOB_PREFIX}*"):
        if jobs.state_of(folder) == "running":
            progress.say("waiting for uv's cache, which the build before this one is filling")
        while jobs.poll(layout, folder.name, wait=5).state == "running":
            continue


def start(layout: Layout, env_id: str, cache: Path, store: Path) -> None:
    """Start the job that keeps what an environment's build leaves: a cache of its own, or bytecode not kept yet."""
    first = first_cache(layout, env_id)
    if first.is_dir() or not store.exists():
        arguments = {
            "root": str(layout.root),
            "workspace": str(layout.workspace),
            "first": str(first),
            "cache": str(cache),
            "env": str(layout.env(env_id)),
            "store": str(store),
        }
        jobs.start_or_attach(layout, f"{JOB_PREFIX}{env_id}", ENTRY, arguments, title="fill uv's cache")


def keep(arguments: dict[str, Any], progress: Progress) -> dict[str, Any]:
    """Job entry: fill the cache from the build's own, then pack its bytecode."""
    os.nice(19)
    first = Path(arguments["first"])
    filled = first.is_dir() and fill(first, Path(arguments["cache"]), progress)
    bytecode.keep(Path(arguments["env"]), Path(arguments["store"]))
    return {"filled": filled}


def fill(first: Path, cache: Path, progress: Progress) -> bool:
    """Copy `first` to `cache` unless another build filled it meanwhile; remove `first`. Tell whether it was copied."""
    part = cache.with_name(f".{cache.name}-part")
    cache.mkdir(parents=True, exist_ok=True)
    with cache.with_name(f".{cache.name}-lock").open("w") as guard:
        fcntl.flock(guard, fcntl.LOCK_EX)
        filled = is_filled(cache)
        if not filled:
            progress.say(f"filling {cache}")
            shutil.rmtree(part, ignore_errors=True)
            copied = subprocess.run(["cp", "-a", str(first), str(part)], capture_output=True, text=True, check=False)
            if copied.returncode:
                shutil.rmtree(part, ignore_errors=True)
                raise OpsError(
                    f"uv's cache could not be filled: {copied.stderr.strip()[-500:]}",
                    remedy="nothing is lost; the next build fetches its packages again",
                )
            place(part, cache)
    shutil.rmtree(first)
    return not filled


def place(part: Path, cache: Path) -> None:
    """Move what was copied into the cache: unpacked files before the notes that point to them."""
    for entry in sorted(part.iterdir(), key=lambda path: (not path.name.startswith("archive-"), path.name)):
        target = cache / entry.name
        if target.is_dir():
            shutil.rmtree(target)
        target.unlink(missing_ok=True)
        shutil.move(entry, target)
    part.rmdir()
