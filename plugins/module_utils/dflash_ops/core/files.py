"""Atomic file writes, reads that tolerate damage, and hashes of files and trees."""
from __future__ import annotations

import hashlib
import json
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any


def fsync_folder(folder: Path) -> None:
    """Make renames inside `folder` durable."""
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def write_bytes(path: Path, data: bytes, *, mode: int = 0o644) -> None:
    """Replace `path` with `data` in one durable rename, with exactly `mode` regardless of the umask."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(prefix=f".{path.name}.", suffix=".tmp", dir=path.parent)
    try:
        with os.fdopen(handle, "wb") as stream:
            os.fchmod(stream.fileno(), mode)
            stream.write(data)
            stream.flush()
            os.fsync(stream.fileno())
        os.replace(name, path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise
    fsync_folder(path.parent)


def write_text(path: Path, text: str, *, mode: int = 0o644) -> None:
    """Replace `path` with `text` (UTF-8) in one rename."""
    write_bytes(path, text.encode(), mode=mode)


def write_json(path: Path, value: Any, *, mode: int = 0o644) -> None:
    """Replace `path` with `value` as indented JSON, keeping the order of the keys."""
    write_text(path, json.dumps(value, indent=2, ensure_ascii=False) + "\n", mode=mode)


def read_json(path: Path) -> Any | None:
    """Return the parsed file; None when it is missing or not valid JSON."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None


def read_tail(path: Path, limit: int = 65536) -> str:
    """Return at most the last `limit` bytes of `path` as text; invalid UTF-8 is replaced."""
    try:
        with path.open("rb") as stream:
            stream.seek(0, os.SEEK_END)
            stream.seek(max(0, stream.tell() - limit))
            return stream.read().decode("utf-8", errors="replace")
    except OSError:
        return ""


def file_sha256(path: Path) -> str:
    """Return the SHA-256 of a file's bytes in hex, reading it in chunks."""
    digest = hashlib.sha256()
    with path.open("rb") as stream:
        while chunk := stream.read(1 << 20):
            digest.update(chunk)
    return digest.hexdigest()


def walk_files(top: Path) -> Iterator[Path]:
    """Yield every file and symlink below `top`, sorted, without following symlinks to folders."""
    for folder, names, files in os.walk(top):
        names.sort()
        links = [name for name in names if (Path(folder) / name).is_symlink()]
        for name in sorted(files + links):
            yield Path(folder) / name


def tree_hash(top: Path) -> str:
    """Return one SHA-256 over the relative path, executable bit and content of every file below `top`."""
    digest = hashlib.sha256()
    for path in walk_files(top):
        name = path.relative_to(top).as_posix()
        if path.is_symlink():
            content, kind = hashlib.sha256(os.readlink(path).encode()).hexdigest(), "link"
        else:
            content, kind = file_sha256(path), "exec" if os.access(path, os.X_OK) else "file"
        digest.update(f"{kind} {content} {name}\n".encode())
    return digest.hexdigest()


def replace_link(link: Path, target: Path) -> None:
    """Point the symlink `link` at `target` in one rename."""
    temporary = link.with_name(f".{link.name}.{os.getpid()}.tmp")
    temporary.unlink(missing_ok=True)
    temporary.symlink_to(target)
    os.replace(temporary, link)
    fsync_folder(link.parent)
