"""Staging directory of a build, and environments that a heal replaced."""

from __future__ import annotations

import shutil
from pathlib import Path

from ..core.paths import Layout
from .inspection import processes_using


def build_folder(layout: Layout, env_id: str) -> Path:
    """Return the folder in which an environment is built."""
    return layout.envs / f".building-{env_id}"


def replaced_folders(layout: Layout, env_id: str) -> list[Path]:
    """Return the earlier copies of an environment that heals replaced."""
    return list(layout.envs.glob(f".replaced-{env_id}-*"))


def remove_unused(*folders: Path) -> None:
    """Remove folders, except those in use: a run keeps running from the copy that a heal replaced."""
    for folder in folders:
        if not processes_using(folder):
            shutil.rmtree(folder, ignore_errors=True)
