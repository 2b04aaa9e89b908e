"""Sources of a lockfile's packages: folders of wheels first, then exactly one index per package."""

from __future__ import annotations

import dataclasses
import os
import re
import urllib.parse
from collections.abc import Mapping, Sequence
from pathlib import Path

from ..core.errors import OpsError
from .lockfile import Lockfile, Pin, normalized

DEFAULT = "default"
OFF = "none"


@dataclasses.dataclass(frozen=True)
class Sources:
    """Indexes and folders that the operator configured.

    Args:
        index_urls: index URL by `default` or package name; `none` disables one. The lockfile's index applies otherwise.
        folders: folders on the box with wheels (find-links, wheelhouse).
    """

    index_urls: Mapping[str, str]
    folders: tuple[Path, ...]


@dataclasses.dataclass(frozen=True)
class SourceGroup:
    """Pins that come from the same source.

    Args:
        pins: the packages.
        index: URL of the index, possibly with a password; empty for the default index, `none` for folders only.
        dedicated: the index serves these pins and no others.
    """

    pins: tuple[Pin, ...]
    index: str
    dedicated: bool

    @property
    def description(self) -> str:
        """Name of the source for messages, without a password."""
        return {"": "the default index", OFF: "folders only"}.get(self.index, without_password(self.index))


def local_wheel_folders() -> tuple[Path, ...]:
    """Return the wheel folders in PIP_FIND_LINKS and UV_FIND_LINKS of this process."""
    names = f"{os.environ.get('PIP_FIND_LINKS', '')} {os.environ.get('UV_FIND_LINKS', '').replace(',', ' ')}".split()
    return tuple(Path(name) for name in dict.fromkeys(names) if Path(name).is_dir())


def wheel_names(folders: Sequence[Path]) -> dict[str, list[str]]:
    """Return the wheel file names in the folders by normalized `name==version`.

    Raises:
        OpsError: a folder does not exist.
    """
    wheels: dict[str, list[str]] = {}
    for folder in folders:
        if not folder.is_dir():
            raise OpsError(
                f"python_env_find_links: {folder} is not a folder on this box.",
                remedy="name folders that contain wheels, or leave it empty",
            )
        for path in folder.glob("*.whl"):
            name, version, *_ = path.name.split("-")
            key = f"{normalized(name)}=={urllib.parse.unquote(version)}"
            wheels.setdefault(key, []).append(path.name)
    return wheels


def has_wheel(pin: Pin, wheels: Mapping[str, list[str]], python: str) -> bool:
    """Return True if `wheels` contains a wheel of this pin for a Python version such as `3.11`."""
    tag = "cp" + python.replace(".", "")
    names = wheels.get(f"{pin.name}=={pin.version}", [])
    return any(re.search(rf"-({tag}|py3|py2\.py3|cp3\d+-abi3)-", name) for name in names)


def plan(lock: Lockfile, sources: Sources, *, python: str) -> list[SourceGroup]:
    """Group the lockfile's pins by source, dedicated indexes first.

    Raises:
        OpsError: an index is disabled and no folder has the wheel.
    """
    wheels = wheel_names(sources.folders)
    by_index: dict[str, list[Pin]] = {}
    default: list[Pin] = []
    for pin in lock.pins:
        if pin.name in lock.built and not has_wheel(pin, wheels, python) and f"'{python}'" in pin.marker:
            raise OpsError(
                f"{pin.name}=={pin.version} was built by hand and recorded in the lockfile; no folder in "
                f"python_env_find_links or python_env_wheelhouse has its wheel for Python {python}.",
                remedy="put the wheel there, or remove it from trainer/locks/built.json and run `make lock`",
            )
        if pin.name not in lock.indexes or has_wheel(pin, wheels, python):
            default.append(pin)
        else:
            url = sources.index_urls.get(pin.name, lock.indexes[pin.name])
            by_index.setdefault(_require_index(url, pin, python), []).append(pin)
    groups = [SourceGroup(tuple(pins), url, dedicated=True) for url, pins in by_index.items()]
    return [*groups, SourceGroup(tuple(default), sources.index_urls.get(DEFAULT, ""), dedicated=False)]


def _require_index(url: str, pin: Pin, python: str) -> str:
    if url in ("", OFF):
        raise OpsError(
            f"{pin.name}=={pin.version} has no source: its index is disabled (python_env_index_urls) and no "
            f"folder in python_env_find_links has its wheel for Python {python}.",
            remedy="name an index, or a folder with the wheel",
        )
    return url


def requirement_lines(pins: Sequence[Pin]) -> str:
    """Return pins as a hashed requirements file."""
    lines = []
    for pin in pins:
        marker = f" ; {pin.marker}" if pin.marker else ""
        hashes = " ".join(f"--hash=sha256:{digest}" for digest in pin.hashes)
        lines.append(f"{pin.name}=={pin.version}{marker} {hashes}\n")
    return "".join(lines)


def without_password(text: str) -> str:
    """Hide user and password of each URL in a text."""
    return re.sub(r"(\w+://)[^/\s@]+@", r"\1***@", text)
