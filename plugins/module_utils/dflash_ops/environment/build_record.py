"""What env.json says of an environment beside its files: the python below it, packages, wheels, what it inherits."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from ..core import tree_manifest
from . import lockfile
from .inspection import inherited_files, inherited_of
from .interpreters import Interpreter

# The tag in a wheel's file name, which uv's note about it repeats.
WHEEL_TAG = re.compile(rb"-((?:py|cp)[\w.]+-\w+-[\w.]+)\.whl")


def base_record(python: Interpreter) -> dict[str, Any]:
    return {
        "asked": str(python.path),
        "executable": str(python.executable),
        "version": python.version,
        "customize": tree_manifest.base_digests(python.customize),
    }


def inherited_record(python: Interpreter) -> dict[str, Any]:
    """Record the image's packages: names, versions, and the files of those that are used."""
    names = sorted(inherited_of(python))
    rows = inherited_files(python, names)
    hashes = tree_manifest.digests(python.purelib, rows)
    return {
        "packages": names,
        "distributions": python.distributions,
        "files": {name: [*row, hashes[name]] for name, row in rows.items()},
    }


def package_rows(site: Path, lock: lockfile.Lock, cache: Path) -> list[dict[str, str]]:
    """Return name, version and wheel hash of each installed package, from the lock and the cache that uv used."""
    pins = {(pin.name, pin.version): pin for pin in lock.pins}
    rows = []
    for name, version in sorted(tree_manifest.packages(site).items()):
        pin = pins.get((lockfile.normalized(name), version))
        rows.append(
            {"name": name, "version": version, "wheel_sha256": wheel_hash(cache, site, pin) if pin else ""}
        )
    return rows


def wheel_hash(cache: Path, site: Path, pin: lockfile.Pin) -> str:
    """Return which of a pin's hashes was installed, from uv's notes in its cache; the only one when there is one."""
    if len(pin.hashes) == 1:
        return pin.hashes[0]
    folder = next(site.glob(f"{pin.name.replace('-', '_')}-{pin.version}.dist-info"), None)
    tags = set((folder / "WHEEL").read_text().split()) if folder else set()
    for depth in ("*", "*/*"):
        for note in cache.glob(f"wheels-v*/{depth}/{pin.name}/{pin.version}-*"):
            if note.suffix in (".http", ".rev"):
                data = note.read_bytes()
                found = next((one for one in pin.hashes if one.encode() in data), "")
                if found and any(expanded(tag.decode()) & tags for tag in WHEEL_TAG.findall(data)):
                    return found
    return ""


def expanded(tag: str) -> set[str]:
    """Return the single tags of a compressed one: `py2.py3-none-any` is two."""
    parts = tag.split("-")
    if len(parts) != 3:
        return set()
    return {
        f"{python}-{abi}-{system}"
        for python in parts[0].split(".")
        for abi in parts[1].split(".")
        for system in parts[2].split(".")
    }
