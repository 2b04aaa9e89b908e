"""The old cache stays until the new one is proved: it waits beside it, and comes back when that fails or is killed."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

from . import manifest

SUFFIX = ".before"


def path_of(folder: Path) -> Path:
    """Return key the cache in `folder` waits while a new one is made."""
    return folder.with_name(folder.name + SUFFIX)


@contextlib.contextmanager
def replacing(folder: Path) -> Iterator[Path]:
    """Make room for a new cache in `folder`; yield key the old one waits until the block worked.

    The block ends with a written record, or raises: then the old one is put back. What it wants to keep of the old
    one it moves away itself.
    """
    old = path_of(folder)
    if folder.is_dir():
        os.rename(folder, old)
    try:
        yield old
    except BaseException:
        restore(folder)
        raise
    shutil.rmtree(old, ignore_errors=True)


def restore(folder: Path) -> None:
    """Let the old cache take its place again."""
    old = path_of(folder)
    if old.is_dir():
        shutil.rmtree(folder, ignore_errors=True)
        os.rename(old, folder)


def recover(folder: Path) -> bool:
    """Clean up after a replacement that was killed; tell whether the old cache came back."""
    old = path_of(folder)
    if not old.is_dir():
        return False
    if manifest.read_record(folder).get("shapes"):
        shutil.rmtree(old)
        return False
    restore(folder)
    return True
