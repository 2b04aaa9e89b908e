"""What is in an environment, file by file, and what differs from its record.

A manifest maps each path below the environment to `[size, mtime in ns, SHA-256]`; a link has its target's text hashed.
The fast check looks at names, sizes and times and hashes only what looks different; the full check hashes everything.
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
"""What a build puts into site-packages besides the wheels."""
CHUNK_BYTES = 1 << 16


@dataclasses.dataclass(frozen=True)
class Drift:
    """One difference between a record and the box.

    Args:
        kind: added, removed, edited, package, startup or base.
        path: the file below the environment, or what differs.
        detail: what it is, in words.
    """

    kind: str
    path: str
    detail: str

    def __str__(self) -> str:
        return f"{self.kind}: {self.path} ({self.detail})"


def scan(top: Path) -> dict[str, os.stat_result]:
    """Return each file and link below `top` with its stat, without env.json."""
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
    """Return the SHA-256 of a file's bytes, or of a link's target."""
    if os.path.islink(path):
        return hashlib.sha256(os.readlink(path).encode()).hexdigest()
    found = hashlib.sha256()
    handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:  # small pieces: a buffer of a megabyte for each of 30 000 small files costs a fifth of the time
        while piece := os.read(handle, CHUNK_BYTES):
            found.update(piece)
    finally:
        os.close(handle)
    return found.hexdigest()


def digests(top: Path, names: Iterable[str], *, threads: int | None = None) -> dict[str, str]:
    """Return name to SHA-256, hashing on all cores."""
    wanted = sorted(names)
    workers = threads or os.cpu_count() or 1
    parts = [wanted[start :: workers * 8] for start in range(workers * 8)]

    def part_digests(part: list[str]) -> list[tuple[str, str]]:
        return [(name, digest(f"{top}/{name}")) for name in part]

    with ThreadPoolExecutor(workers) as pool:
        return dict(pair for pairs in pool.map(part_digests, parts) for pair in pairs)


@dataclasses.dataclass(frozen=True)
class FileHash:
    """A file that was hashed before, and what tells that it was not written to since.

    Args:
        stamp: its size, mtime, ctime and inode when it was hashed; the kernel moves ctime at every change.
        sha256: of its bytes.
    """

    stamp: tuple[int, int, int, int]
    sha256: str


def stamp(stat: os.stat_result) -> tuple[int, int, int, int]:
    """Return what differs as soon as a file was written to or replaced."""
    return (stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns, stat.st_ino)


def hash_file(path: str) -> FileHash:
    """Hash a file that others may be writing: its stamp is the one from before the first byte was read."""
    before = os.lstat(path)
    return FileHash(stamp(before), digest(path))


def manifest(
    top: Path, stats: Mapping[str, os.stat_result] | None = None, *, known: Mapping[str, FileHash] | None = None
) -> Manifest:
    """Return the manifest of what is below `top`; a file is hashed unless it is `known` and was not touched since.

    Args:
        top: the environment.
        stats: what a scan found there; a new scan when it is not given.
        known: hashes from before.
    """
    stats = scan(top) if stats is None else stats
    known = known or {}
    held = {name: known[name].sha256 for name in stats.keys() & known.keys() if known[name].stamp == stamp(stats[name])}
    hashes = {**held, **digests(top, stats.keys() - held.keys())}
    return {name: [stats[name].st_size, stats[name].st_mtime_ns, hashes[name]] for name in sorted(stats)}


def fingerprint(recorded: Manifest) -> str:
    """Return one SHA-256 over paths and contents, the same wherever the same wheels were installed.

    Left out is what holds times: bytecode, uv's notes about local files, and RECORD, which lists those notes.
    """
    found = hashlib.sha256()
    for name, (_, _, hash_) in sorted(recorded.items()):
        if not name.endswith((".pyc", ".dist-info/uv_cache.json", ".dist-info/RECORD")):
            found.update(f"{hash_} {name}\n".encode())
    return found.hexdigest()


def record_problems(site: Path, recorded: Manifest, *, prefix: str) -> list[str]:
    """Compare installed files with the lists inside their wheels (RECORD): a damaged cache shows here.

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
            if not claimed.startswith("sha256=") or path.endswith(".pyc"):
                continue
            wanted = base64.urlsafe_b64decode(claimed[7:] + "=" * (-len(claimed[7:]) % 4)).hex()
            held = recorded.get(path)
            if held is None:
                problems.append(f"{path} of {record.parent.name} is missing")
            elif held[2] != wanted:
                problems.append(f"{path}: sha256 {held[2]}, its wheel says {wanted}")
    return problems + [
        f"{path} is in no wheel's list" for path in sorted(recorded.keys() - listed) if _is_of_a_wheel(path, prefix)
    ]


def _is_of_a_wheel(path: str, prefix: str) -> bool:
    """Tell whether only a wheel can have brought a file: not bytecode, and not what a build writes itself."""
    own = (f"{prefix}{BUILD_PTH}", f"{prefix}_virtualenv.py", f"{prefix}_virtualenv.pth")
    return path.startswith(prefix) and not path.endswith(".pyc") and path not in own


def packages(site: Path) -> dict[str, str]:
    """Return the name and version of each installed distribution, from the names of its folder."""
    found = {}
    for folder in site.glob("*.dist-info"):
        name, _, version = folder.name[: -len(".dist-info")].partition("-")
        found[name.replace("_", "-").lower()] = version
    return found


def compare(top: Path, recorded: Manifest, *, full: bool) -> list[Drift]:
    """Return what differs from the manifest.

    Args:
        top: the environment.
        recorded: its manifest.
        full: hash every file, not only those whose size or time differs.
    """
    stats = scan(top)
    drift = [Drift("removed", name, "was installed") for name in recorded.keys() - stats.keys()]
    drift += [_added(name) for name in stats.keys() - recorded.keys()]
    both = stats.keys() & recorded.keys()
    suspect = {name for name in both if full or _looks_different(stats[name], recorded[name])}
    hashes = digests(top, suspect)
    drift += [
        Drift("edited", name, f"{recorded[name][0]} bytes in the record, {stats[name].st_size} now")
        for name in suspect
        if hashes[name] != recorded[name][2]
    ]
    return sorted(drift, key=lambda one: (one.kind != "package", one.kind, one.path))


def _looks_different(now: os.stat_result, then: list[Any]) -> bool:
    return now.st_size != then[0] or now.st_mtime_ns != then[1]


def _added(name: str) -> Drift:
    last = name.rpartition("/")[2]
    if last.endswith(".pth") or last in ("sitecustomize.py", "usercustomize.py"):
        return Drift("startup", name, "is run by every start of this python, and is in no lock")
    if last == "METADATA" and name.rpartition("/")[0].endswith(".dist-info"):
        return Drift("package", name.split("/")[-2][: -len(".dist-info")], "is installed, and is in no lock")
    return Drift("added", name, "is in no lock")


def fold(drift: list[Drift]) -> list[Drift]:
    """Fold many files of one added or removed folder into one line."""
    groups: dict[tuple[str, str], list[Drift]] = {}
    for one in drift:
        parts = one.path.split("/")
        site = "/".join(parts[: parts.index("site-packages") + 2]) if "site-packages" in parts[:-1] else one.path
        groups.setdefault((one.kind, site), []).append(one)
    lines = []
    for (kind, place), members in groups.items():
        if len(members) > 3 and kind in ("added", "removed"):
            lines.append(Drift(kind, place, f"{len(members)} files, such as {members[0].path}"))
        else:
            lines += members
    return lines


def base_digests(paths: Iterable[Path]) -> dict[str, str]:
    """Return path to SHA-256 of the files outside the environment that every start of its python runs."""
    return {str(path): digest(path) for path in paths if path.is_file()}
