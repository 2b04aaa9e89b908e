"""Install the pinned uv on the box from a folder of wheels, checked by hash.

When no folder has its wheel, the controller fetches it with pip and pushes it into the wheelhouse on the box.
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


def pinned(lock_text: str) -> Pin:
    """Return the pin of uv in its lock."""
    for pin in parse(lock_text).pins:
        if pin.name == "uv":
            return pin
    raise OpsError("uv's lock has no line uv==VERSION.", remedy="re-make it with `make lock`")


def place(layout: Layout, pin: Pin) -> Path:
    return layout.root / "tools" / f"uv-{pin.version}" / "uv"


def works(uv: Path, version: str) -> bool:
    """Tell whether the program is there and is that version."""
    try:
        answer = subprocess.run([uv, "--version"], capture_output=True, text=True, timeout=30, check=False)
    except OSError:
        return False
    return answer.stdout.split()[:2] == ["uv", version]


def ensure(layout: Layout, lock_text: str, sources: Sources) -> Path:
    """Return the path of the pinned uv, installing it when it is not there.

    Raises:
        OpsError: no folder has it, or its hash is not the pinned one.
    """
    pin = pinned(lock_text)
    target = place(layout, pin)
    if works(target, pin.version):
        return target
    wheel = wheel_in(sources.folders, pin)
    if wheel is None:
        raise OpsError(
            f"No folder on this box has the wheel of uv=={pin.version} for {platform.machine()}.",
            remedy="run deploy.yml, which pushes it, or name a folder that has it (python_env_find_links)",
        )
    unpack(checked(wheel, pin), target)
    if not works(target, pin.version):
        raise OpsError(
            f"{target} does not run on this machine ({platform.machine()}).", remedy="see its output by hand"
        )
    return target


def is_here(layout: Layout, lock_text: str, sources: Sources) -> bool:
    """Tell whether the box has uv, or a folder with its wheel."""
    pin = pinned(lock_text)
    return works(place(layout, pin), pin.version) or wheel_in(sources.folders, pin) is not None


def wheel_in(folders: Sequence[Path], pin: Pin) -> Path | None:
    """Return the wheel of this uv for this machine's processor and a GNU C library."""
    name = re.compile(rf"uv-{re.escape(pin.version)}-py3-none-manylinux[\w.]*_{platform.machine()}(\.[\w.]+)?\.whl")
    return next((path for top in folders for path in sorted(top.glob("uv-*.whl")) if name.fullmatch(path.name)), None)


def checked(wheel: Path, pin: Pin) -> bytes:
    """Return the bytes of a wheel when they are one of the pinned files."""
    data = wheel.read_bytes()
    found = hashlib.sha256(data).hexdigest()
    if found not in pin.hashes:
        raise OpsError(
            f"{wheel} has sha256 {found}, the lock has {', '.join(pin.hashes)}.",
            remedy="fetch the file again, or ask who changed it",
        )
    return data


def unpack(wheel: bytes, target: Path) -> None:
    """Write the program of a uv wheel to `target`."""
    with zipfile.ZipFile(io.BytesIO(wheel)) as archive:
        name = next(name for name in archive.namelist() if re.fullmatch(r"uv-[^/]+\.data/scripts/uv", name))
        shutil.rmtree(target.parent, ignore_errors=True)
        files.write_bytes(target, archive.read(name), mode=0o755)
