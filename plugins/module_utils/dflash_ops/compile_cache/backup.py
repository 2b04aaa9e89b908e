"""Backup of a cache while its replacement is built, restored when that fails or is killed."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

from . import manifest

SUFFIX = ".before"


def path_of(folder: Path) -> Path:
    """Return the path of the backup of `folder`."""
    return folder.with_name(folder.name + SUFFIX)


@contextlib.contextmanager
def replacing(folder: Path) -> Iterator[Path]:
    """Move the cache in `folder` to its backup and yield the backup's path.

    The block builds the new cache and writes its record. When it raises, the backup is restored, otherwise deleted.
    The block may move files out of the backup to keep them.
    """
    backup = path_of(folder)
    if folder.is_dir():
        os.rename(folder, backup)
    try:
        yield backup
    except BaseException:
        restore(folder)
        raise
    shutil.rmtree(backup, ignore_errors=True)


def restore(folder: Path) -> None:
    """Replace `folder` by its backup, if there is one."""
    backup = path_of(folder)
    if backup.is_dir():
        shutil.rmtree(folder, ignore_errors=True)
        os.rename(backup, folder)


def recover(folder: Path) -> bool:
    """Clean up after a replacement that was killed; return whether the backup was restored."""
    backup = path_of(folder)
    if not backup.is_dir():
        return False
    if manifest.read_record(folder).get("shapes"):
        shutil.rmtree(backup)
        return False
    restore(folder)
    return True
