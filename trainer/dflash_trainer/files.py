"""Atomic file writes."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any


def write_text(path: Path, text: str, *, sync: bool = True) -> None:
    """Replace `path` atomically; with `sync`, file and rename survive a power loss."""
    staging = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with staging.open("w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            if sync:
                os.fsync(file.fileno())
        staging.replace(path)
    except BaseException:
        staging.unlink(missing_ok=True)
        raise
    if sync:
        sync_folder(path.parent)


def write_json(path: Path, value: Any, *, sync: bool = True) -> None:
    """Replace `path` atomically with `value` as indented JSON."""
    write_text(path, json.dumps(value, indent=2, default=str) + "\n", sync=sync)


def sync_folder(folder: Path) -> None:
    """Flush `folder` to disk, so that renames in it survive a power loss."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def sync_file(path: Path) -> None:
    """Flush the contents of a file to disk."""
    with path.open("rb") as file:
        os.fsync(file.fileno())
