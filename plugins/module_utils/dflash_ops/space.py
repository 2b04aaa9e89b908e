"""Free space, on the mount where the bytes will really land."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from .errors import OpsError

GIB = 1 << 30


def existing_parent(path: Path) -> Path:
    """Return `path` or its nearest folder that exists, links followed."""
    spot = Path(os.path.realpath(path))
    while not spot.is_dir():
        spot = spot.parent
    return spot


def mount_of(path: Path) -> Path:
    """Return the mount point that holds `path`."""
    spot = existing_parent(path)
    while not spot.is_mount() and spot != spot.parent:
        spot = spot.parent
    return spot


def free_bytes(path: Path) -> int:
    """Return what an ordinary user may still write below `path`."""
    return shutil.disk_usage(existing_parent(path)).free


def human(count: float) -> str:
    """Return bytes as a short text in binary units."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(count) < 1024:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:.1f} TiB"


def require(path: Path, needed: int, *, what: str, remedy: str) -> None:
    """Refuse when the mount of `path` has less than `needed` bytes.

    Raises:
        OpsError: naming the mount, what is free and what is needed.
    """
    free = free_bytes(path)
    if free < needed:
        raise OpsError(
            f"{what} needs {human(needed)} on {mount_of(path)} (for {path}), which has {human(free)} free.",
            remedy=remedy,
        )
