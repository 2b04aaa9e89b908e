"""May we write there, and is there space: asked of the folder and mount where the bytes will really land."""

from __future__ import annotations

import errno
import os
import shutil
from pathlib import Path

from .errors import OpsError
from .paths import Layout

GIB = 1 << 30
FULL = (errno.ENOSPC, errno.EDQUOT)
FORBIDDEN = (errno.EACCES, errno.EPERM, errno.EROFS)


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


def format_bytes(count: float) -> str:
    """Return bytes as a short text in binary units."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(count) < 1024:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:.1f} TiB"


def require_space(path: Path, needed: int, *, what: str, remedy: str) -> None:
    """Refuse when the mount of `path` has less than `needed` bytes.

    Raises:
        OpsError: naming the mount, what is free and what is needed.
    """
    free = free_bytes(path)
    if free < needed:
        raise OpsError(
            f"{what} needs {format_bytes(needed)} on {mount_of(path)} (for {path}), "
            f"which has {format_bytes(free)} free.",
            remedy=remedy,
        )


def require_not_file(path: Path, variable: str) -> None:
    """Refuse a folder that is a file, or lies below one.

    Raises:
        OpsError: naming it.
    """
    for one in (path, *path.parents):
        if os.path.lexists(one) and not one.is_dir():
            what = "a file" if one.exists() else "a link to nothing"
            raise OpsError(f"{variable}={path}: {one} is {what}.", remedy=f"set {variable} to a folder")


def require_writable(layout: Layout, *, create: bool) -> None:
    """Refuse a root or workspace that this user cannot fill, before anything else is done there.

    Args:
        layout: the box.
        make: make the folders, which is the only proof that they can be made; False only looks.

    Raises:
        OpsError: naming the variable.
    """
    for path, variable in ((layout.root, "dflash_root"), (layout.workspace, "dflash_workspace")):
        require_not_file(path, variable)
        if create:
            try:
                path.mkdir(parents=True, exist_ok=True)
            except OSError as error:
                raise OpsError(
                    f"{variable}={path} cannot be made: {error.strerror} ({error.filename}).",
                    remedy=_writable_remedy(variable),
                ) from error
        spot = existing_parent(path)
        if not os.access(spot, os.W_OK | os.X_OK):
            raise OpsError(
                f"{variable}={path}: this user (uid {os.geteuid()}) cannot write to {spot}.",
                remedy=_writable_remedy(variable),
            )


def _writable_remedy(variable: str) -> str:
    return f"set {variable} to a folder that the user who logs in can write to, or give that user this one"


def explain_os_error(error: OSError, layout: Layout) -> OpsError | None:
    """Return what a full or forbidden folder means for the operator; None for any other error."""
    path = Path(os.fsdecode(error.filename)) if error.filename else layout.root
    inside = layout.workspace != layout.root and path.is_relative_to(layout.workspace)
    variable = "dflash_workspace" if inside else "dflash_root"
    if error.errno in FULL:
        return OpsError(
            f"The disk is full: {error.strerror} ({path}, on {mount_of(path)}).",
            remedy=f"free some (playbooks/prune.yml shows what can go), or set {variable} to a folder on another mount",
        )
    if error.errno in FORBIDDEN:
        return OpsError(f"{path} cannot be written: {error.strerror}.", remedy=_writable_remedy(variable))
    return None
