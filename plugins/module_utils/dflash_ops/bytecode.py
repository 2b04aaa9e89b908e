"""Bytecode of an environment, kept beside uv's cache: a second build of the same lock does not compile it again.

Python accepts bytecode by the time and size of its source. All sources of an environment get one fixed time, so the
bytecode of one build fits every other build of the same lock by the same python.
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


def fix_times(env: Path) -> None:
    """Give every source file the one time."""
    for name in scan(env):
        if name.endswith(".py"):
            os.utime(env / name, (SOURCE_TIME, SOURCE_TIME), follow_symlinks=False)


def restore(env: Path, store: Path) -> bool:
    """Unpack kept bytecode beside its sources; tell whether there was any. A broken archive is removed."""
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
    source = path.parent.parent / f"{path.name.partition('.')[0]}.py"
    stream = tar.extractfile(member)
    if stream is None or ".." in path.parts or path.suffix != ".pyc" or not source.is_file():
        return
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(stream.read())


def keep(env: Path, store: Path) -> None:
    """Pack the environment's bytecode, in one rename; what is kept already stays."""
    if store.exists():
        return
    store.parent.mkdir(parents=True, exist_ok=True)
    spare = store.with_name(f".{store.name}.{os.getpid()}")
    with tarfile.open(spare, "w") as tar:
        for name in sorted(scan(env)):
            if name.endswith(".pyc"):
                tar.add(env / name, arcname=name, recursive=False)
    os.replace(spare, store)
