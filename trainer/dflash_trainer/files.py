"""Files that appear whole or not at all."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any


def write_text(path: Path, text: str, *, sync: bool = True) -> None:
    """Write aside, flush to the disk (when `sync`), rename over `path`."""
    aside = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with aside.open("w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            if sync:
                os.fsync(file.fileno())
        aside.replace(path)
    except BaseException:
        aside.unlink(missing_ok=True)
        raise
    if sync:
        sync_folder(path.parent)


def write_json(path: Path, value: Any, *, sync: bool = True) -> None:
    """`value` as indented JSON, written whole."""
    write_text(path, json.dumps(value, indent=2, default=str) + "\n", sync=sync)


def sync_folder(folder: Path) -> None:
    """Make renames inside `folder` survive a power cut."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def sync_file(path: Path) -> None:
    """Flush one file's bytes to the disk."""
    with path.open("rb") as file:
        os.fsync(file.fileno())
