"""Files of a compile cache, compared with the record that the cache check wrote (`cache.json`)."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path, PurePosixPath
from typing import Any

from ..core import files

RECORD = "cache.json"
TEMPORARY_SUFFIXES = (".lock", ".tmp")
# Inductor's choice of the fastest configuration of a Triton kernel. For variants of a reduction it measures again in
# each process and rewrites the file, so changed bytes are not damage.
REMEASURED = ".best_config"


def read_record(folder: Path) -> dict[str, Any]:
    """Return cache.json; empty when it is missing or malformed."""
    value = files.read_json(folder / RECORD)
    return value if isinstance(value, dict) and _well_formed(value) else {}


def _well_formed(value: Mapping[str, Any]) -> bool:
    if not all(isinstance(value.get(key), str) for key in ("env_id", "hardware")):
        return False
    listed, shapes = value.get("files"), value.get("shapes")
    if not isinstance(listed, dict) or not isinstance(shapes, dict):
        return False
    return all(_is_safe_path(name) and _is_row(row) for name, row in listed.items()) and all(
        isinstance(shape, dict) for shape in shapes.values()
    )


def _is_safe_path(name: str) -> bool:
    path = PurePosixPath(name)
    return bool(path.parts) and not path.is_absolute() and ".." not in path.parts


def _is_row(row: Any) -> bool:
    return isinstance(row, list) and len(row) == 2 and isinstance(row[0], int) and isinstance(row[1], str)


def has_files(folder: Path) -> bool:
    """Return whether the cache has any content."""
    return folder.is_dir() and any(True for _ in content_files(folder))


def content_files(folder: Path) -> Iterator[Path]:
    """Yield the files of the cache, without locks, temporary files, symlinks and the record."""
    for path in files.walk_files(folder):
        below = path.relative_to(folder)
        temporary = path.name.endswith(TEMPORARY_SUFFIXES) or "locks" in below.parts
        if not (temporary or path.is_symlink() or path.name == RECORD):
            yield path


def build(folder: Path) -> dict[str, list[Any]]:
    """Return `{relative path: [bytes, sha256]}`."""
    return {
        path.relative_to(folder).as_posix(): [path.stat().st_size, files.file_sha256(path)]
        for path in content_files(folder)
    }


def damaged_files(folder: Path, listed: Mapping[str, Any]) -> Iterator[str]:
    """Yield the recorded files that are missing or differ in size or content."""
    for name, (size, digest) in listed.items():
        path = folder / name
        try:
            same = path.stat().st_size == size and files.file_sha256(path) == digest
            if not (same or (path.suffix == REMEASURED and _is_kernel_config(path))):
                yield name
        except OSError:
            yield name


def _is_kernel_config(path: Path) -> bool:
    """Return whether a file is a complete JSON object with the hash of its kernel's configurations."""
    try:
        value = json.loads(path.read_text())
    except (ValueError, RecursionError):
        return False
    return isinstance(value, dict) and "configs_hash" in value


def first_foreign(folder: Path, uid: int) -> Path | None:
    """Return the first file or folder that `uid` does not own and may therefore be unable to replace."""
    foreign = (path for path in (folder, *folder.rglob("*")) if path.lstat().st_uid != uid)
    return next(foreign, None)
