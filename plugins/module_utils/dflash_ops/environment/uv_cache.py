"""The cache of uv: lent to a build, which links from it, and given back after the environment is in place.

Copying a gigabyte is most of what an environment costs. So a build takes the box's own cache to a folder beside the
environments, or begins a new one there, and links from it; nothing else ever reads that folder. When the environment
is in place, a job of low priority gives each file that has two names now one of its own, puts the cache back and keeps
the bytecode that the proof made. From then on the environment shares no file with anything. From a cache that others
may use, and from one on another mount, files are copied.
"""

from __future__ import annotations

import fcntl
import os
import shutil
from pathlib import Path
from typing import Any

from ..core import files, jobs
from ..core.jobs import Progress
from ..core.paths import Layout
from ..core.tree_manifest import RECORD_NAME, scan
from . import bytecode, hard_links, staging

ENTRY = "environment.uv_cache:keep"
JOB_PREFIX = "uv-cache-"


def is_filled(cache: Path) -> bool:
    """Tell whether anything is unpacked in a cache of uv."""
    return cache.is_dir() and any(cache.glob("archive-v*/*"))


def lent_cache(layout: Layout, env_id: str) -> Path:
    """Return the cache that the build of an environment has for itself; it lies on the environments' mount."""
    return layout.envs / f".cache-{env_id}"


def is_lent(layout: Layout, env_id: str) -> bool:
    """Tell whether the build of an environment has a cache, or had one that was not given back."""
    return lent_cache(layout, env_id).is_dir()


def is_building(layout: Layout, env_id: str) -> bool:
    """Tell whether a build of an environment is at work, which may be using the cache that it was lent."""
    return jobs.state_of(layout.job(f"env-{env_id}")) == "running"


def is_owed(layout: Layout, env_id: str) -> bool:
    """Tell whether a build that is over has left a cache to give back."""
    return is_lent(layout, env_id) and not is_building(layout, env_id)


def is_anywhere(layout: Layout, cache: Path) -> bool:
    """Tell whether a filled cache is in its place, or where a build left it."""
    return any(is_filled(one) for one in (cache, *layout.envs.glob(".cache-*")))


def choose(layout: Layout, env_id: str, cache: Path, progress: Progress) -> Path:
    """Return the cache for a build: one for itself alone, unless there is a filled one that cannot be taken."""
    wait(layout, progress)
    for left in layout.envs.glob(".cache-*"):
        other = left.name.removeprefix(".cache-")
        if other == env_id or not is_building(layout, other):
            progress.say("putting back the cache of uv that a broken build left")
            give_back(left, cache)
    lent = lent_cache(layout, env_id)
    return cache if is_filled(cache) and not take(layout, cache, lent) else lent


def take(layout: Layout, cache: Path, lent: Path) -> bool:
    """Take the box's own cache aside in one rename; tell whether it could be done."""
    if cache != layout.uv_cache or cache.is_symlink():
        return False
    lent.parent.mkdir(parents=True, exist_ok=True)
    try:
        os.rename(cache, lent)
    except OSError:  # another mount
        return False
    os.utime(lent)  # what prune takes for old is a day older than this
    return True


def wait(layout: Layout, progress: Progress) -> None:
    """Wait until no earlier build is still giving back the cache."""
    for folder in layout.jobs.glob(f"{JOB_PREFIX}*"):
        if jobs.state_of(folder) == "running":
            progress.say("waiting for uv's cache, which the build before this one is giving back")
        while jobs.poll(layout, folder.name, wait=5).state == "running":
            continue


def start(layout: Layout, env_id: str, cache: Path, store: Path) -> None:
    """Start the job that sees to what an environment's build leaves: its cache, bytecode, what was replaced."""
    lent = lent_cache(layout, env_id)
    if is_lent(layout, env_id) or not store.exists() or staging.replaced(layout, env_id):
        arguments = {
            "root": str(layout.root),
            "workspace": str(layout.workspace),
            "lent": str(lent),
            "cache": str(cache),
            "env": str(layout.env(env_id)),
            "store": str(store),
        }
        jobs.start_or_attach(layout, f"{JOB_PREFIX}{env_id}", ENTRY, arguments, title="fill uv's cache")


def keep(arguments: dict[str, Any], progress: Progress) -> dict[str, Any]:
    """Job entry: give back the cache that a build had, keep the environment's bytecode, remove what it replaced."""
    os.nice(19)
    layout = Layout.of(arguments["root"], arguments["workspace"])
    lent, cache = Path(arguments["lent"]), Path(arguments["cache"])
    progress.say("keeping what the build leaves for later ones: uv's cache, bytecode")
    filled = lent.is_dir() and give_back(lent, cache)
    env = Path(arguments["env"])
    bytecode.keep(env, Path(arguments["store"]), (files.read_json(env / RECORD_NAME) or {}).get("files", {}))
    staging.clear(*staging.replaced(layout, env.name))
    return {"filled": filled}


def give_back(lent: Path, cache: Path) -> bool:
    """Let what a build had be the cache, sharing no file with anything; tell whether it was.

    When another build filled the cache meanwhile, `lent` is removed.
    """
    cache.mkdir(parents=True, exist_ok=True)
    with cache.with_name(f".{cache.name}-lock").open("w") as guard:
        fcntl.flock(guard, fcntl.LOCK_EX)
        filled = is_filled(cache)
        if not filled:
            place(unshared(lent, cache), cache)
    if lent.exists():
        shutil.rmtree(lent)
    return not filled


def unshared(lent: Path, cache: Path) -> Path:
    """Return a folder on the mount of `cache` with what was lent, in which no file has another name."""
    if lent.stat().st_dev == cache.stat().st_dev:
        hard_links.separate(lent, hard_links.shared(scan(lent)))
        return lent
    part = cache.with_name(f".{cache.name}-part")
    shutil.rmtree(part, ignore_errors=True)
    return Path(shutil.copytree(lent, part, symlinks=True))


def place(part: Path, cache: Path) -> None:
    """Move what was a build's into the cache: unpacked files before the notes that point to them."""
    for entry in sorted(part.iterdir(), key=lambda path: (not path.name.startswith("archive-"), path.name)):
        target = cache / entry.name
        if target.is_dir():
            shutil.rmtree(target)
        target.unlink(missing_ok=True)
        shutil.move(entry, target)
    part.rmdir()
