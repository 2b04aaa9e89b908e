"""Atomic file writes."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any


def write_text(path: Path, text: str, *, sync: bool = True) -> None:
    """Write a temporary file, fsync it (with `sync`) and rename it over `path`."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with temporary.open("w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            if sync:
                os.fsync(file.fileno())
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    if sync:
        sync_folder(path.parent)


def write_json(path: Path, value: Any, *, sync: bool = True) -> None:
    """Write `value` atomically as indented JSON."""
    write_text(path, json.dumps(value, indent=2, default=str) + "\n", sync=sync)


def sync_folder(folder: Path) -> None:
    """Fsync `folder`, so that renames in it survive a power failure."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def sync_file(path: Path) -> None:
    """Fsync one file."""
    with path.open("rb") as file:
        os.fsync(file.fileno())
