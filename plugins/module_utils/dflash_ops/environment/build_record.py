"""Parts of env.json other than the file list: base Python, packages with wheel hashes, inherited packages."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from ..core import tree_manifest
from . import lockfile
from .inspection import inherited_files, inherited_versions
from .interpreters import Interpreter

# The tag in a wheel's file name, as it appears in uv's cache entry.
WHEEL_TAG = re.compile(rb"-((?:py|cp)[\w.]+-\w+-[\w.]+)\.whl")


def base_record(python: Interpreter) -> dict[str, Any]:
    """Return the record of the base interpreter and of its sitecustomize and usercustomize files."""
    return {
        "requested": str(python.path),
        "executable": str(python.executable),
        "version": python.version,
        "customize": tree_manifest.base_digests(python.customize),
    }


def inherited_record(python: Interpreter) -> dict[str, Any]:
    """Return versions of all packages of the image, and the files of those that the environment inherits."""
    names = sorted(inherited_versions(python))
    rows = inherited_files(python, names)
    hashes = tree_manifest.digests(python.purelib, rows)
    return {
        "packages": names,
        "distributions": python.distributions,
        "files": {name: [*row, hashes[name]] for name, row in rows.items()},
    }


def package_rows(site: Path, lock: lockfile.Lockfile, cache: Path) -> list[dict[str, str]]:
    """Return name, version and wheel hash of each installed package, from the lockfile and uv's cache."""
    pins = {(pin.name, pin.version): pin for pin in lock.pins}
    rows = []
    for name, version in sorted(tree_manifest.packages(site).items()):
        pin = pins.get((lockfile.normalized(name), version))
        rows.append(
            {"name": name, "version": version, "wheel_sha256": wheel_hash(cache, site, pin) if pin else ""}
        )
    return rows


def wheel_hash(cache: Path, site: Path, pin: lockfile.Pin) -> str:
    """Return the hash of the installed wheel, chosen among the pin's hashes by uv's cache entries; empty if unknown."""
    if len(pin.hashes) == 1:
        return pin.hashes[0]
    folder = next(site.glob(f"{pin.name.replace('-', '_')}-{pin.version}.dist-info"), None)
    tags = set((folder / "WHEEL").read_text().split()) if folder else set()
    for depth in ("*", "*/*"):
        for entry in cache.glob(f"wheels-v*/{depth}/{pin.name}/{pin.version}-*"):
            if entry.suffix in (".http", ".rev"):
                data = entry.read_bytes()
                match = next((digest for digest in pin.hashes if digest.encode() in data), "")
                if match and any(expand_tag(tag.decode()) & tags for tag in WHEEL_TAG.findall(data)):
                    return match
    return ""


def expand_tag(tag: str) -> set[str]:
    """Return the single tags of a compressed tag set: `py2.py3-none-any` stands for two."""
    parts = tag.split("-")
    if len(parts) != 3:
        return set()
    return {
        f"{python}-{abi}-{system}"
        for python in parts[0].split(".")
        for abi in parts[1].split(".")
        for system in parts[2].split(".")
    }
