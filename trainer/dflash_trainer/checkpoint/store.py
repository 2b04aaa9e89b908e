"""Checkpoint folder of a run: find, publish and rotate checkpoints."""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dflash_trainer.checkpoint.hashing import FileRecord, record_of
from dflash_trainer.files import sync_folder, write_json

INDEX = "index.json"
WEIGHTS = "model.safetensors"
OPTIMIZER = "optimizer.safetensors"
TRAINER = "trainer.json"
_NAME = re.compile(r"step-(\d{8})")


@dataclass(frozen=True)
class Checkpoint:
    """A complete checkpoint on disk."""

    folder: Path
    step: int

    @property
    def weights(self) -> Path:
        """Path of model.safetensors."""
        return self.folder / WEIGHTS

    @property
    def optimizer(self) -> Path:
        """Path of optimizer.safetensors."""
        return self.folder / OPTIMIZER

    def trainer(self) -> dict[str, Any]:
        """Return trainer.json: position, fingerprint and configuration."""
        values: dict[str, Any] = json.loads((self.folder / TRAINER).read_text(encoding="utf-8"))
        return values

    def bytes(self) -> int:
        """Return the size on disk in bytes, from the index."""
        files = json.loads((self.folder / INDEX).read_text(encoding="utf-8"))["files"]
        return sum(int(record["size"]) for record in files.values())


class CheckpointStore:
    """Checkpoints of a run; `read_only` never changes the folder."""

    def __init__(self, folder: Path, *, read_only: bool = False) -> None:
        self.folder = folder
        self._read_only = read_only

    def newest(self, log: Callable[[str], None]) -> Checkpoint | None:
        """Return the newest complete checkpoint; newer damaged ones are reported and renamed to damaged-*."""
        for folder in reversed(self.folders()):
            problem = damage(folder)
            if problem is None:
                return Checkpoint(folder, step_of(folder))
            action = "left unchanged" if self._read_only else f"renamed to {self._quarantine(folder).name}"
            log(f"checkpoint {folder.name} is damaged ({problem}): {action}; trying the previous one")
        return None

    def folders(self) -> list[Path]:
        """Return the checkpoint folders, oldest first, complete or not."""
        if not self.folder.is_dir():
            return []
        found = [path for path in self.folder.iterdir() if _NAME.fullmatch(path.name) and path.is_dir()]
        return sorted(found, key=step_of)

    def staging(self, step: int) -> Path:
        """Create an empty staging folder for checkpoint `step`; leftovers of dead writers are removed."""
        self.folder.mkdir(parents=True, exist_ok=True)
        for leftover in self.folder.glob(".writing-*"):
            shutil.rmtree(leftover)
        folder = self.folder / f".writing-{name_of(step)}"
        folder.mkdir()
        return folder

    def publish(self, written: Path, step: int, files: dict[str, FileRecord]) -> Checkpoint:
        """Verify the staging folder `written`, write its index, rename it and point `latest` to it.

        Raises:
            OSError: a file reads back differently from the data written.
        """
        for name, expected in files.items():
            if record_of(written / name) != expected:
                raise OSError(f"{name} reads back differently from what was written")
        write_json(written / INDEX, {"step": step, "files": files})
        folder = self.folder / name_of(step)
        if folder.exists():
            shutil.rmtree(folder)
        written.rename(folder)
        sync_folder(self.folder)
        self.point("latest", folder)
        return Checkpoint(folder, step)

    def point(self, name: str, folder: Path) -> None:
        """Point the symlink `name` (latest, best) to `folder`, atomically."""
        link = self.folder / f".{name}.{os.getpid()}"
        link.unlink(missing_ok=True)
        link.symlink_to(folder.name)
        link.replace(self.folder / name)

    def rotate(self, keep: int) -> list[Path]:
        """Remove all but the newest `keep` and the targets of `latest` and `best`; return the removed folders."""
        pointed = {os.readlink(link) for name in ("latest", "best") if (link := self.folder / name).is_symlink()}
        removed = [folder for folder in self.folders()[:-keep] if folder.name not in pointed]
        for folder in removed:
            doomed = folder.with_name(f".writing-removed-{folder.name}")
            folder.rename(doomed)
            shutil.rmtree(doomed, ignore_errors=True)
        return removed

    def _quarantine(self, folder: Path) -> Path:
        target = folder.with_name(f"damaged-{folder.name}")
        number = 1
        while target.exists():
            number += 1
            target = folder.with_name(f"damaged-{folder.name}-{number}")
        folder.rename(target)
        return target


def name_of(step: int) -> str:
    """Return the folder name of checkpoint `step`."""
    return f"step-{step:08d}"


def step_of(folder: Path) -> int:
    """Return the step of a checkpoint folder."""
    match = _NAME.fullmatch(folder.name)
    assert match is not None
    return int(match.group(1))


def damage(folder: Path) -> str | None:
    """Return the damage of a checkpoint, or None: every indexed file must have its recorded size and hash."""
    try:
        files = json.loads((folder / INDEX).read_text(encoding="utf-8"))["files"]
    except FileNotFoundError:
        return f"no {INDEX}"
    except (OSError, ValueError, KeyError, TypeError) as error:
        return f"{INDEX} cannot be read: {error}"
    missing = {WEIGHTS, OPTIMIZER, TRAINER} - set(files)
    if missing:
        return f"{INDEX} lacks {', '.join(sorted(missing))}"
    for name, record in files.items():
        file = folder / name
        if not file.is_file():
            return f"{name} is missing"
        if file.stat().st_size != record["size"]:
            return f"{name} has {file.stat().st_size} bytes, not {record['size']}"
        if record_of(file) != record:
            return f"the SHA-256 of {name} differs from the index"
    return None
