"""Get the pinned uv onto the box, checked by hash: from a folder of wheels, or from an index, without pip.

Where no index is named, the controller fetches the wheel with its own pip and pushes it into the wheelhouse on the box.
"""

from __future__ import annotations

import hashlib
import html.parser
import platform
import re
import shutil
import subprocess
import urllib.error
import urllib.parse
import urllib.request
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from ..core import files
from ..core.errors import OpsError
from ..core.paths import Layout
from .lockfile import Pin, parse
from .sources import DEFAULT, OFF, Sources, without_password


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
    """Return the path of the pinned uv, fetching it when it is not there.

    Raises:
        OpsError: no source has it, or its hash is not the pinned one.
    """
    pin = pinned(lock_text)
    target = place(layout, pin)
    if works(target, pin.version):
        return target
    wheel = from_folders(sources.folders, pin) or from_index(index_url(sources.index_urls), pin)
    unpack(wheel, target)
    if not works(target, pin.version):
        raise OpsError(
            f"{target} does not run on this machine ({platform.machine()}).", remedy="see its output by hand"
        )
    return target


def index_url(index_urls: Mapping[str, str]) -> str:
    """Return the index that was named for uv; empty when none was."""
    return index_urls.get("uv") or index_urls.get(DEFAULT) or ""


def is_wanted(layout: Layout, lock_text: str, sources: Sources) -> bool:
    """Tell whether the controller has to bring uv's wheel: it is not here, in no folder, and no index is named."""
    pin = pinned(lock_text)
    if index_url(sources.index_urls) or works(place(layout, pin), pin.version):
        return False
    return not any(fits(path.name, pin) for folder in sources.folders for path in folder.glob("uv-*.whl"))


def fits(name: str, pin: Pin) -> bool:
    """Tell whether a wheel file is this uv for this machine's processor and a GNU C library."""
    return (
        re.fullmatch(
            rf"uv-{re.escape(pin.version)}-py3-none-manylinux[\w.]*_{platform.machine()}(\.[\w.]+)?\.whl", name
        )
        is not None
    )


def checked(data: bytes, pin: Pin, where: str) -> bytes:
    """Return the bytes when they are one of the pinned files."""
    found = hashlib.sha256(data).hexdigest()
    if found not in pin.hashes:
        raise OpsError(
            f"{without_password(where)} has sha256 {found}, the lock has {', '.join(pin.hashes)}.",
            remedy="fetch the file again, or ask who changed it",
        )
    return data


def from_folders(folders: Sequence[Path], pin: Pin) -> bytes | None:
    for folder in folders:
        for path in sorted(folder.glob("uv-*.whl")):
            if fits(path.name, pin):
                return checked(path.read_bytes(), pin, str(path))
    return None


class Links(html.parser.HTMLParser):
    """Collects the targets of a simple index page."""

    def __init__(self) -> None:
        super().__init__()
        self.targets: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.targets += [value for name, value in attrs if tag == "a" and name == "href" and value]


def fetch(url: str) -> bytes:
    """Return what a URL holds; user and password in it are used."""
    parts = urllib.parse.urlsplit(url)
    handlers: list[urllib.request.BaseHandler] = []
    if parts.username:
        manager = urllib.request.HTTPPasswordMgrWithPriorAuth()
        host = parts.netloc.rpartition("@")[2]
        url = urllib.parse.urlunsplit(parts._replace(netloc=host))
        manager.add_password(None, url, parts.username, parts.password or "", is_authenticated=True)
        handlers.append(urllib.request.HTTPBasicAuthHandler(manager))
    try:
        with urllib.request.build_opener(*handlers).open(url, timeout=60) as answer:
            return bytes(answer.read())
    except (urllib.error.URLError, TimeoutError, OSError) as error:
        raise OpsError(
            f"Cannot fetch {without_password(url)}: {error}.",
            remedy="give this box a mirror (python_env_index_urls) or a wheelhouse (python_env_wheelhouse)",
        ) from error


def from_index(index: str, pin: Pin) -> bytes:
    """Return the wheel that fits this machine from a simple index."""
    if index in ("", OFF):
        raise OpsError(
            f"uv=={pin.version} has no source: no index, and no folder has its wheel.",
            remedy="name an index (python_env_index_urls), or push a wheelhouse (`make wheelhouse`)",
        )
    page = f"{index.rstrip('/')}/uv/"
    links = Links()
    links.feed(fetch(page).decode(errors="replace"))
    for target in links.targets:
        url = urllib.parse.urljoin(page, target).partition("#")[0]
        if fits(urllib.parse.unquote(url.rpartition("/")[2]), pin):
            return checked(fetch(url), pin, url)
    raise OpsError(
        f"{without_password(page)} has no uv=={pin.version} wheel for {platform.machine()}.",
        remedy="give another index (python_env_index_urls) or a wheelhouse",
    )


def unpack(wheel: bytes, target: Path) -> None:
    """Write the program of a uv wheel to `target`."""
    spare = target.parent.parent / f".{target.parent.name}.whl"
    files.write_bytes(spare, wheel)
    try:
        with zipfile.ZipFile(spare) as archive:
            name = next(name for name in archive.namelist() if re.fullmatch(r"uv-[^/]+\.data/scripts/uv", name))
            shutil.rmtree(target.parent, ignore_errors=True)
            files.write_bytes(target, archive.read(name), mode=0o755)
    finally:
        spare.unlink(missing_ok=True)
