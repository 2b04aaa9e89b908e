"""Checkpoints as the box sees them: which are complete by their index, which are damaged, which were put aside."""

from __future__ import annotations

import dataclasses
from pathlib import Path

from ..core import files

INDEX = "index.json"


@dataclasses.dataclass(frozen=True)
class Folder:
    """One checkpoint folder.

    Args:
        path: where it lies.
        step: its step.
        damage: what is wrong; empty when every file of its index is there with its size.
    """

    path: Path
    step: int
    damage: str


def damage(folder: Path) -> str:
    """Say what a checkpoint lacks, by names and sizes; the trainer compares hashes too before it resumes."""
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


def look(folder: Path) -> list[Folder]:
    """Return the checkpoint folders, lowest step first."""
    found = [path for path in folder.glob("step-*") if path.is_dir() and path.name.removeprefix("step-").isdigit()]
    return [Folder(path, int(path.name.removeprefix("step-")), damage(path)) for path in sorted(found)]


def complete(folder: Path) -> list[Folder]:
    """Return those that can be resumed from, lowest step first."""
    return [item for item in look(folder) if not item.damage]


def put_aside(folder: Path) -> list[Path]:
    """Return damaged checkpoints that the trainer kept aside."""
    return sorted(folder.glob("damaged-step-*"))
