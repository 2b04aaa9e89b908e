"""Where the files of a lock come from: folders first, then indexes, and one index a package."""

from __future__ import annotations

import dataclasses
import os
import re
import urllib.parse
from collections.abc import Mapping, Sequence
from pathlib import Path

from ..core.errors import OpsError
from .lockfile import Lock, Pin, normalized

DEFAULT = "default"
OFF = "none"


@dataclasses.dataclass(frozen=True)
class Sources:
    """What the operator lets us fetch from.

    Args:
        index_urls: `default` or a package name to an index; `none` turns one off; else it is as the lock has it.
        folders: folders on the box with wheels (find-links, wheelhouse).
    """

    index_urls: Mapping[str, str]
    folders: tuple[Path, ...]


@dataclasses.dataclass(frozen=True)
class Part:
    """Pins that come from one place.

    Args:
        pins: what comes from there.
        index: its URL, which may hold a password; empty for the default index, `none` for folders only.
        own: the index is asked for these pins and no others.
    """

    pins: tuple[Pin, ...]
    index: str
    own: bool

    @property
    def place(self) -> str:
        """Say where that is, for messages."""
        return {"": "the default index", OFF: "folders only"}.get(self.index, without_password(self.index))


def folders_of_this_machine() -> tuple[Path, ...]:
    """Return the folders of wheels that pip and uv are told of in the caller's environment."""
    words = f"{os.environ.get('PIP_FIND_LINKS', '')} {os.environ.get('UV_FIND_LINKS', '').replace(',', ' ')}".split()
    return tuple(Path(word) for word in dict.fromkeys(words) if Path(word).is_dir())


def wheel_names(folders: Sequence[Path]) -> dict[str, list[str]]:
    """Return normalized `name==version` to the wheel files in the folders.

    Raises:
        OpsError: a folder is not there.
    """
    found: dict[str, list[str]] = {}
    for folder in folders:
        if not folder.is_dir():
            raise OpsError(
                f"python_env_find_links: {folder} is not a folder on this box.",
                remedy="give folders that hold wheels, or leave it empty",
            )
        for path in folder.glob("*.whl"):
            name, version, *_ = path.name.split("-")
            key = f"{normalized(name)}=={urllib.parse.unquote(version)}"
            found.setdefault(key, []).append(path.name)
    return found


def in_folders(pin: Pin, wheels: Mapping[str, list[str]], python: str) -> bool:
    """Tell whether a folder has a wheel of this pin for this python (`3.11`)."""
    tag = "cp" + python.replace(".", "")
    names = wheels.get(f"{pin.name}=={pin.version}", [])
    return any(re.search(rf"-({tag}|py3|py2\.py3|cp3\d+-abi3)-", name) for name in names)


def plan(lock: Lock, sources: Sources, *, python: str) -> list[Part]:
    """Group the lock's pins by the one place each comes from, the ones with an index of their own first.

    Raises:
        OpsError: an index is turned off and no folder has the wheel.
    """
    wheels = wheel_names(sources.folders)
    groups: dict[str, list[Pin]] = {}
    plain: list[Pin] = []
    for pin in lock.pins:
        if pin.name in lock.built and not in_folders(pin, wheels, python) and f"'{python}'" in pin.marker:
            raise OpsError(
                f"{pin.name}=={pin.version} was built by hand and recorded in the lock; no folder in "
                f"python_env_find_links or python_env_wheelhouse has its wheel for Python {python}.",
                remedy="put the wheel there, or take it out of trainer/locks/built.json and run `make lock`",
            )
        if pin.name not in lock.indexes or in_folders(pin, wheels, python):
            plain.append(pin)
        else:
            url = sources.index_urls.get(pin.name, lock.indexes[pin.name])
            groups.setdefault(_required(url, pin, python), []).append(pin)
    parts = [Part(tuple(pins), url, own=True) for url, pins in groups.items()]
    return [*parts, Part(tuple(plain), sources.index_urls.get(DEFAULT, ""), own=False)]


def _required(url: str, pin: Pin, python: str) -> str:
    if url in ("", OFF):
        raise OpsError(
            f"{pin.name}=={pin.version} has no source: its index is turned off (python_env_index_urls) and no "
            f"folder in python_env_find_links has its wheel for Python {python}.",
            remedy="name an index, or a folder with the wheel",
        )
    return url


def requirement_lines(pins: Sequence[Pin]) -> str:
    """Return pins as a hashed requirements file."""
    lines = []
    for pin in pins:
        marker = f" ; {pin.marker}" if pin.marker else ""
        hashes = " ".join(f"--hash=sha256:{one}" for one in pin.hashes)
        lines.append(f"{pin.name}=={pin.version}{marker} {hashes}\n")
    return "".join(lines)


def without_password(text: str) -> str:
    """Hide user and password of each URL in a text."""
    return re.sub(r"(\w+://)[^/\s@]+@", r"\1***@", text)
