"""Checkpoints on the box: complete ones by their index, damaged ones, and those that the trainer quarantined."""

from __future__ import annotations

import dataclasses
from pathlib import Path

from ..core import files

INDEX = "index.json"


@dataclasses.dataclass(frozen=True)
class Checkpoint:
    """A checkpoint folder.

    Args:
        path: the folder.
        step: its training step.
        damage: the first problem found; empty when every file of its index exists with the recorded size.
    """

    path: Path
    step: int
    damage: str


def damage(folder: Path) -> str:
    """Return the first problem of a checkpoint by names and sizes; the trainer also compares hashes when it resumes."""
    index = files.read_json(folder / INDEX)
    listed = index.get("files") if isinstance(index, dict) else None
    if not isinstance(listed, dict):
        return f"no readable {INDEX}"
    for name, record in listed.items():
        try:
            size = (folder / name).stat().st_size
        except OSError:
            return f"{name} is missing"
        if size != record.get("size"):
            return f"{name} has {size} bytes, not {record.get('size')}"
    return ""


def read_all(folder: Path) -> list[Checkpoint]:
    """Return the checkpoints below `folder`, lowest step first."""
    found = [path for path in folder.glob("step-*") if path.is_dir() and path.name.removeprefix("step-").isdigit()]
    return [Checkpoint(path, int(path.name.removeprefix("step-")), damage(path)) for path in sorted(found)]


def complete(folder: Path) -> list[Checkpoint]:
    """Return the checkpoints that a run can resume from, lowest step first."""
    return [item for item in read_all(folder) if not item.damage]


def quarantined(folder: Path) -> list[Path]:
    """Return the damaged checkpoints that the trainer renamed."""
    return sorted(folder.glob("damaged-step-*"))
