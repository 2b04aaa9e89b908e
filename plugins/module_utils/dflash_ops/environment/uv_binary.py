"""Install the pinned uv on the box from a folder of wheels, verified by hash.

If no folder has its wheel, the controller downloads it with pip and copies it into the wheelhouse on the box.
"""

from __future__ import annotations

import hashlib
import io
import platform
import re
import shutil
import subprocess
import zipfile
from collections.abc import Sequence
from pathlib import Path

from ..core import files
from ..core.errors import OpsError
from ..core.paths import Layout
from .lockfile import Pin, parse
from .sources import Sources


def uv_pin(lock_text: str) -> Pin:
    """Return the pin of uv in its lockfile.

    Raises:
        OpsError: uv is not pinned.
    """
    for pin in parse(lock_text).pins:
        if pin.name == "uv":
            return pin
    raise OpsError("uv's lockfile has no line uv==VERSION.", remedy="resolve it again with `make lock`")


def install_path(layout: Layout, pin: Pin) -> Path:
    """Return the path of this uv version on the box."""
    return layout.root / "tools" / f"uv-{pin.version}" / "uv"


def is_version(uv: Path, version: str) -> bool:
    """Return True if the program runs and reports this version."""
    try:
        done = subprocess.run([uv, "--version"], capture_output=True, text=True, timeout=30, check=False)
    except OSError:
        return False
    return done.stdout.split()[:2] == ["uv", version]


def ensure(layout: Layout, lock_text: str, sources: Sources) -> Path:
    """Return the path of the pinned uv; install it if it is missing.

    Raises:
        OpsError: no folder has its wheel, or the wheel's hash is not pinned.
    """
    pin = uv_pin(lock_text)
    target = install_path(layout, pin)
    if is_version(target, pin.version):
        return target
    wheel = find_wheel(sources.folders, pin)
    if wheel is None:
        raise OpsError(
            f"No folder on this box has the wheel of uv=={pin.version} for {platform.machine()}.",
            remedy="run deploy.yml, which copies it to the box, or name a folder that has it (python_env_find_links)",
        )
    unpack(read_verified(wheel, pin), target)
    if not is_version(target, pin.version):
        raise OpsError(
            f"{target} does not run on this machine ({platform.machine()}).",
            remedy="run it by hand and read its output",
        )
    return target


def is_available(layout: Layout, lock_text: str, sources: Sources) -> bool:
    """Return True if the box has the pinned uv, or a folder with its wheel."""
    pin = uv_pin(lock_text)
    return is_version(install_path(layout, pin), pin.version) or find_wheel(sources.folders, pin) is not None


def find_wheel(folders: Sequence[Path], pin: Pin) -> Path | None:
    """Return the wheel of this uv for this machine's processor and glibc, or None."""
    name = re.compile(rf"uv-{re.escape(pin.version)}-py3-none-manylinux[\w.]*_{platform.machine()}(\.[\w.]+)?\.whl")
    return next((path for top in folders for path in sorted(top.glob("uv-*.whl")) if name.fullmatch(path.name)), None)


def read_verified(wheel: Path, pin: Pin) -> bytes:
    """Return the bytes of a wheel whose hash is pinned.

    Raises:
        OpsError: the hash is not pinned.
    """
    data = wheel.read_bytes()
    digest = hashlib.sha256(data).hexdigest()
    if digest not in pin.hashes:
        raise OpsError(
            f"{wheel} has sha256 {digest}, the lockfile has {', '.join(pin.hashes)}.",
            remedy="download the file again, or ask who changed it",
        )
    return data


def unpack(wheel: bytes, target: Path) -> None:
    """Write the program in a uv wheel to `target`."""
    with zipfile.ZipFile(io.BytesIO(wheel)) as archive:
        name = next(name for name in archive.namelist() if re.fullmatch(r"uv-[^/]+\.data/scripts/uv", name))
        shutil.rmtree(target.parent, ignore_errors=True)
        files.write_bytes(target, archive.read(name), mode=0o755)
