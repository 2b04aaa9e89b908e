"""Folders beside an environment: the one that is being built, and those that a heal replaced."""

from __future__ import annotations

import shutil
from pathlib import Path

from ..core.paths import Layout
from .inspection import users_of


def building(layout: Layout, env_id: str) -> Path:
    """Return the folder in which an environment is built."""
    return layout.envs / f".building-{env_id}"


def replaced(layout: Layout, env_id: str) -> list[Path]:
    """Return what stood in an environment's place before it was healed."""
    return list(layout.envs.glob(f".replaced-{env_id}-*"))


def clear(*folders: Path) -> None:
    """Remove folders that no process uses: a run that lives through a heal goes on in what was replaced."""
    for folder in folders:
        if not users_of(folder):
            shutil.rmtree(folder, ignore_errors=True)
