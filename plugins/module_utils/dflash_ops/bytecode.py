"""Bytecode of an environment, kept beside uv's cache: a second build of the same lock does not compile it again.

Python accepts bytecode by the time and size of its source. All sources of an environment get one fixed time, so the
bytecode of one build fits every other build of the same lock by the same python. Whether it runs, the proof says.
"""

from __future__ import annotations

import os
import tarfile
from pathlib import Path

from .fingerprint import scan

# 2024-01-01 00:00 UTC, for every source file.
SOURCE_TIME = 1704067200


def store_path(cache: Path, lock_sha256: str, python_version: str) -> Path:
    """Return the archive of one lock by one python."""
    return cache / "dflash-bytecode-v1" / f"{lock_sha256[:16]}-{python_version}.tar"


def fix_time(path: str) -> None:
    """Give a source file the one time."""
    os.utime(path, (SOURCE_TIME, SOURCE_TIME), follow_symlinks=False)


def settle(env: Path) -> None:
    """Give every source that does not have it yet the one time, and remove bytecode that has no source."""
    stats = scan(env)
    for name, stat in stats.items():
        if name.endswith(".py") and stat.st_mtime_ns != SOURCE_TIME * 10**9:
            fix_time(f"{env}/{name}")
        elif is_bytecode(name) and source_of(name) not in stats:
            (env / name).unlink()


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


def restore(env: Path, store: Path) -> bool:
    """Unpack kept bytecode to where it belongs; tell whether there was any. A broken archive is removed.

    The sources need not be there yet: `settle` removes what has none in the end.
    """
    if not store.is_file():
        return False
    try:
        with tarfile.open(store) as tar:
            for member in tar:
                _unpack(env, tar, member)
    except (tarfile.TarError, OSError, EOFError):
        store.unlink(missing_ok=True)
        return False
    return True


def _unpack(env: Path, tar: tarfile.TarFile, member: tarfile.TarInfo) -> None:
    path = env / member.name
    stream = tar.extractfile(member)
    if stream is None or ".." in path.parts or path.parent.name != "__pycache__" or path.suffix != ".pyc":
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(stream.read())


def keep(env: Path, store: Path) -> None:
    """Pack the environment's bytecode, in one rename; what is kept already stays."""
    if store.exists():
        return
    store.parent.mkdir(parents=True, exist_ok=True)
    spare = store.with_name(f".{store.name}.{os.getpid()}")
    with tarfile.open(spare, "w") as tar:
        for name in sorted(scan(env)):
            if is_bytecode(name):
                tar.add(env / name, arcname=name, recursive=False)
    os.replace(spare, store)
