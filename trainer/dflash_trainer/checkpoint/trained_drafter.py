"""Locate a trained drafter: a checkpoint, a run's folder, or an exported folder."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from dflash_trainer.checkpoint.store import INDEX, WEIGHTS, damage
from dflash_trainer.errors import InputError

_POINTERS = ("best", "latest")


@dataclass(frozen=True)
class TrainedDrafter:
    """Folder with the weights of a trained drafter."""

    folder: Path

    @property
    def weights(self) -> Path:
        """Path of model.safetensors."""
        return self.folder / WEIGHTS

    @property
    def name(self) -> str:
        """Name of the folder; it has the step of a checkpoint."""
        return self.folder.name


def find_trained(path: Path) -> TrainedDrafter:
    """Return the drafter at `path`: a folder with weights, or the best (else the latest) checkpoint of a run.

    Raises:
        InputError: no weights found, or the checkpoint is damaged.
    """
    for folder in _candidates(path):
        if (folder / WEIGHTS).is_file():
            found = folder.resolve()
            problem = damage(found) if (found / INDEX).is_file() else None
            if problem:
                message = f"--checkpoint = {str(path)!r}: {found.name} is damaged ({problem})"
                raise InputError(message, "name another checkpoint")
            return TrainedDrafter(found)
    raise InputError(
        f"--checkpoint = {str(path)!r}: no {WEIGHTS} found",
        "name a checkpoint (RUN/checkpoints/best), a run's folder, or an exported drafter",
    )


def _candidates(path: Path) -> list[Path]:
    return [path, *(base / name for base in (path, path / "checkpoints") for name in _POINTERS)]
