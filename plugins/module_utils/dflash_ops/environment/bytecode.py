"""Bytecode of an environment, kept beside uv's cache: a second build of the same lock does not compile it again.

Python accepts bytecode by the time and size of its source. All sources of an environment get one fixed time, so the
bytecode of one build fits every other build of the same lock by the same python. Whether it runs, the proof says.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
from pathlib import Path

from ..core.tree_manifest import Manifest, scan

# 2024-01-01 00:00 UTC, for every source file.
SOURCE_TIME = 1704067200


def store_path(cache: Path, lock_sha256: str, python_version: str) -> Path:
    """Return the folder in a cache for the bytecode of one lock by one python."""
    return cache / "dflash-bytecode-v2" / f"{lock_sha256[:16]}-{python_version}"


def fix_time(path: str) -> None:
    """Give a source file the one time."""
    os.utime(path, (SOURCE_TIME, SOURCE_TIME), follow_symlinks=False)


def settle(env: Path) -> dict[str, os.stat_result]:
    """Give every source that does not have it yet the one time, and remove bytecode that has no source.

    Returns each file that is there then, with its stat.
    """
    stats = scan(env)
    for name, stat in list(stats.items()):
        if name.endswith(".py") and stat.st_mtime_ns != SOURCE_TIME * 10**9:
            fix_time(f"{env}/{name}")
            stats[name] = os.lstat(f"{env}/{name}")
        elif is_bytecode(name) and source_of(name) not in stats:
            (env / name).unlink()
            del stats[name]
    return stats


def is_bytecode(name: str) -> bool:
    """Tell whether a file was compiled beside its source; a `.pyc` elsewhere is a module that its wheel brought."""
    return name.endswith(".pyc") and "/__pycache__/" in name


def source_of(name: str) -> str:
    """Return the source of a file in `__pycache__`: `a/__pycache__/b.cpython-311.pyc` is of `a/b.py`."""
    folder, _, file = name.rpartition("/__pycache__/")
    return f"{folder}/{file.partition('.')[0]}.py"


def drop(env: Path) -> None:
    """Remove all bytecode."""
    for name in scan(env):
        if is_bytecode(name):
            (env / name).unlink()


def restore(env: Path, store: Path, *, link: bool) -> None:
    """Put kept bytecode, if there is any, to where it belongs, unless something is there.

    The sources need not be there yet: `settle` removes what has none in the end.

    Args:
        env: the environment.
        store: what was kept.
        link: give the kept files a second name instead of copying them; only when nobody else reads them.
    """
    names = list(filter(is_bytecode, scan(store) if store.is_dir() else ()))
    for folder in {name.rpartition("/")[0] for name in names}:
        (env / folder).mkdir(parents=True, exist_ok=True)
    for name in names:
        with contextlib.suppress(FileExistsError):
            (os.link if link else _copy)(store / name, env / name)


def _copy(source: Path, place: Path) -> None:
    with source.open("rb") as held, place.open("xb") as copy:
        shutil.copyfileobj(held, copy)


def keep(env: Path, store: Path, recorded: Manifest) -> None:
    """Keep the environment's bytecode, in one rename; what is kept already stays.

    Only what is as its record says: an edited file would come back with every later build.
    """
    if store.exists():
        return
    spare = store.with_name(f".{store.name}")
    shutil.rmtree(spare, ignore_errors=True)
    spare.mkdir(parents=True)
    for name in filter(is_bytecode, scan(env)):
        data = (env / name).read_bytes()
        if name in recorded and hashlib.sha256(data).hexdigest() == recorded[name][2]:
            (spare / name).parent.mkdir(parents=True, exist_ok=True)
            (spare / name).write_bytes(data)
    os.rename(spare, store)
