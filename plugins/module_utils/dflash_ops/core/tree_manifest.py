"""Manifest of an environment's files, and the differences from a recorded manifest.

A manifest maps each path below the environment to `[size, mtime in ns, SHA-256]`; for a symlink, its target is hashed.
The fast check compares names, sizes and times and hashes only files that differ; the full check hashes all files.
"""

from __future__ import annotations

import base64
import csv
import dataclasses
import hashlib
import os
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

Manifest = dict[str, list[Any]]
RECORD_NAME = "env.json"
BUILD_PTH = "dflash_environment.pth"
"""File that a build adds to site-packages."""
UNLISTED = "is not listed by any wheel"
CHUNK_BYTES = 1 << 16


@dataclasses.dataclass(frozen=True)
class Drift:
    """Difference between a record and the box.

    Args:
        kind: added, removed, edited, package, startup or base.
        path: the file below the environment, or the name of the item.
        detail: the difference as text.
    """

    kind: str
    path: str
    detail: str

    def __str__(self) -> str:
        return f"{self.kind}: {self.path} ({self.detail})"


def scan(top: Path) -> dict[str, os.stat_result]:
    """Return the stat of each file and symlink below `top`, without env.json."""
    found: dict[str, os.stat_result] = {}
    waiting = [("", str(top))]
    while waiting:
        prefix, folder = waiting.pop()
        with os.scandir(folder) as entries:
            for entry in entries:
                if entry.is_dir(follow_symlinks=False):
                    waiting.append((f"{prefix}{entry.name}/", entry.path))
                else:
                    found[prefix + entry.name] = entry.stat(follow_symlinks=False)
    found.pop(RECORD_NAME, None)
    return found


def digest(path: Path | str) -> str:
    """Return the SHA-256 of a file's content, or of a symlink's target."""
    if os.path.islink(path):
        return hashlib.sha256(os.readlink(path).encode()).hexdigest()
    found = hashlib.sha256()
    handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:  # small chunks: a buffer of 1 MiB for each of 30 000 small files takes a fifth of the time
        while chunk := os.read(handle, CHUNK_BYTES):
            found.update(chunk)
    finally:
        os.close(handle)
    return found.hexdigest()


def digests(top: Path, names: Iterable[str], *, threads: int | None = None) -> dict[str, str]:
    """Return the SHA-256 of each file, hashed on all cores."""
    ordered = sorted(names)
    workers = threads or os.cpu_count() or 1
    parts = [ordered[start :: workers * 8] for start in range(workers * 8)]

    def part_digests(part: list[str]) -> list[tuple[str, str]]:
        return [(name, digest(f"{top}/{name}")) for name in part]

    with ThreadPoolExecutor(workers) as pool:
        return dict(pair for pairs in pool.map(part_digests, parts) for pair in pairs)


def manifest(top: Path, stats: Mapping[str, os.stat_result] | None = None) -> Manifest:
    """Return the manifest of all files below `top`.

    Args:
        top: the environment.
        stats: result of a scan; by default a new scan.
    """
    stats = scan(top) if stats is None else stats
    hashes = digests(top, stats)
    return {name: [stats[name].st_size, stats[name].st_mtime_ns, hashes[name]] for name in sorted(stats)}


def fingerprint(recorded: Manifest) -> str:
    """Return one SHA-256 over paths and contents, equal for all installations of the same wheels.

    Files that contain times are excluded: bytecode, uv's cache information, and RECORD, which lists the latter.
    """
    found = hashlib.sha256()
    for name, (_, _, hash_) in sorted(recorded.items()):
        if not name.endswith((".pyc", ".dist-info/uv_cache.json", ".dist-info/RECORD")):
            found.update(f"{hash_} {name}\n".encode())
    return found.hexdigest()


def record_problems(site: Path, recorded: Manifest, *, prefix: str) -> list[str]:
    """Compare installed files with the RECORD of their wheels, which detects a damaged package cache.

    Args:
        site: the site-packages folder.
        recorded: the manifest of the environment.
        prefix: path of `site` below the environment, with a slash at the end.
    """
    problems, listed = [], set()
    for record in sorted(site.glob("*.dist-info/RECORD")):
        for row in csv.reader(record.read_text(encoding="utf-8").splitlines()):
            path, claimed = os.path.normpath(prefix + row[0]), row[1] if len(row) > 1 else ""
            listed.add(path)
            if not claimed.startswith("sha256="):
                continue
            expected = base64.urlsafe_b64decode(claimed[7:] + "=" * (-len(claimed[7:]) % 4)).hex()
            entry = recorded.get(path)
            if entry is None:
                problems.append(f"{path} of {record.parent.name} is missing")
            elif entry[2] != expected:
                problems.append(f"{path}: sha256 {entry[2]}, its wheel records {expected}")
    return problems + [
        f"{path} {UNLISTED}" for path in sorted(recorded.keys() - listed) if _must_come_from_wheel(path, prefix)
    ]


def _must_come_from_wheel(path: str, prefix: str) -> bool:
    """Return whether a file must come from a wheel, because a build does not write it."""
    own = (f"{prefix}{BUILD_PTH}", f"{prefix}_virtualenv.py", f"{prefix}_virtualenv.pth")
    return path.startswith(prefix) and path not in own


def packages(site: Path) -> dict[str, str]:
    """Return the name and version of each installed distribution, taken from the name of its folder."""
    found = {}
    for folder in site.glob("*.dist-info"):
        name, _, version = folder.name[: -len(".dist-info")].partition("-")
        found[name.replace("_", "-").lower()] = version
    return found


def compare(top: Path, recorded: Manifest, *, full: bool) -> list[Drift]:
    """Return the differences from a manifest.

    Args:
        top: the environment.
        recorded: its manifest.
        full: hash every file, not only files with a different size or time.
    """
    stats = scan(top)
    drift = [Drift("removed", name, "was installed") for name in recorded.keys() - stats.keys()]
    drift += [_added(name) for name in stats.keys() - recorded.keys()]
    both = stats.keys() & recorded.keys()
    suspect = {name for name in both if full or _stat_differs(stats[name], recorded[name])}
    hashes = digests(top, suspect)
    drift += [
        Drift("edited", name, f"{recorded[name][0]} bytes in the record, {stats[name].st_size} now")
        for name in suspect
        if hashes[name] != recorded[name][2]
    ]
    return sorted(drift, key=lambda item: (item.kind != "package", item.kind, item.path))


def _stat_differs(now: os.stat_result, then: list[Any]) -> bool:
    return now.st_size != then[0] or now.st_mtime_ns != then[1]


def _added(name: str) -> Drift:
    last = name.rpartition("/")[2]
    if last.endswith(".pth") or last in ("sitecustomize.py", "usercustomize.py"):
        return Drift("startup", name, "runs at every start of this Python and is not in the lockfile")
    if last == "METADATA" and name.rpartition("/")[0].endswith(".dist-info"):
        return Drift("package", name.split("/")[-2][: -len(".dist-info")], "is installed, and is not in the lockfile")
    return Drift("added", name, "is not in the lockfile")


def fold(drift: list[Drift]) -> list[Drift]:
    """Combine many files of one added or removed folder into one item."""
    groups: dict[tuple[str, str], list[Drift]] = {}
    for item in drift:
        parts = item.path.split("/")
        site = "/".join(parts[: parts.index("site-packages") + 2]) if "site-packages" in parts[:-1] else item.path
        groups.setdefault((item.kind, site), []).append(item)
    lines = []
    for (kind, path), members in groups.items():
        if len(members) > 3 and kind in ("added", "removed"):
            lines.append(Drift(kind, path, f"{len(members)} files, such as {members[0].path}"))
        else:
            lines += members
    return lines


def base_digests(paths: Iterable[Path]) -> dict[str, str]:
    """Return the SHA-256 of each file outside the environment that every start of its python runs."""
    return {str(path): digest(path) for path in paths if path.is_file()}
