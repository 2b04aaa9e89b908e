"""Free space and write permission, checked at the folder and mount that receive the data."""

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
    """Return `path` or its nearest existing parent folder, with symlinks resolved."""
    folder = Path(os.path.realpath(path))
    while not folder.is_dir():
        folder = folder.parent
    return folder


def mount_of(path: Path) -> Path:
    """Return the mount point of `path`."""
    folder = existing_parent(path)
    while not folder.is_mount() and folder != folder.parent:
        folder = folder.parent
    return folder


def free_bytes(path: Path) -> int:
    """Return the bytes that an ordinary user can still write below `path`."""
    return shutil.disk_usage(existing_parent(path)).free


def format_bytes(count: float) -> str:
    """Return a number of bytes as text in binary units."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(count) < 1024:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:.1f} TiB"


def require_space(path: Path, needed: int, *, what: str, remedy: str) -> None:
    """Require free space on the mount of `path`.

    Args:
        path: the file or folder to write.
        needed: bytes.
        what: subject of the message.
        remedy: remedy of the message.

    Raises:
        OpsError: naming the mount, the free and the needed bytes.
    """
    free = free_bytes(path)
    if free < needed:
        raise OpsError(
            f"{what} needs {format_bytes(needed)} on {mount_of(path)} (for {path}), "
            f"which has {format_bytes(free)} free.",
            remedy=remedy,
        )


def require_not_file(path: Path, variable: str) -> None:
    """Require that neither `path` nor one of its parents is a file or a dangling symlink.

    Raises:
        OpsError: naming the file.
    """
    for each in (path, *path.parents):
        if os.path.lexists(each) and not each.is_dir():
            kind = "a file" if each.exists() else "a dangling symlink"
            raise OpsError(f"{variable}={path}: {each} is {kind}.", remedy=f"set {variable} to a folder")


def require_writable(layout: Layout, *, create: bool) -> None:
    """Require that this user can write to the root and the workspace, before anything else is done there.

    Args:
        layout: the box.
        create: create missing folders, the only reliable test that this is possible; False only checks permissions.

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
                    f"{variable}={path} cannot be created: {error.strerror} ({error.filename}).",
                    remedy=_writable_remedy(variable),
                ) from error
        folder = existing_parent(path)
        if not os.access(folder, os.W_OK | os.X_OK):
            raise OpsError(
                f"{variable}={path}: this user (uid {os.geteuid()}) cannot write to {folder}.",
                remedy=_writable_remedy(variable),
            )


def _writable_remedy(variable: str) -> str:
    return f"set {variable} to a folder that the login user can write to, or make that user its owner"


def explain_os_error(error: OSError, layout: Layout) -> OpsError | None:
    """Return the operator's message for a full disk or a missing permission; None for any other error."""
    path = Path(os.fsdecode(error.filename)) if error.filename else layout.root
    inside = layout.workspace != layout.root and path.is_relative_to(layout.workspace)
    variable = "dflash_workspace" if inside else "dflash_root"
    if error.errno in FULL:
        return OpsError(
            f"The disk is full: {error.strerror} ({path}, on {mount_of(path)}).",
            remedy=f"free space (playbooks/prune.yml lists candidates), or set {variable} to a folder on another mount",
        )
    if error.errno in FORBIDDEN:
        return OpsError(f"{path} cannot be written: {error.strerror}.", remedy=_writable_remedy(variable))
    return None
