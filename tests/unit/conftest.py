"""What the unit tests share. They import the box's package as `dflash_ops`, as the job runner does."""
from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

REPO = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(REPO / folder) for folder in ("plugins/module_utils", "plugins/plugin_utils", "tests/unit")]

from boxes import Box  # noqa: E402
from dflash_ops.core import jobs  # noqa: E402
from dflash_ops.core.paths import Layout  # noqa: E402


@pytest.fixture
def repo() -> Path:
    """The checkout."""
    return REPO


@pytest.fixture
def layout(tmp_path: Path) -> Layout:
    """A box whose root has a space in its name."""
    return Layout.of(tmp_path / "a box")


@pytest.fixture
def box(tmp_path: Path) -> Iterator[Box]:
    """A box of one's own; what runs and works there is ended."""
    made = Box(tmp_path / "root")
    yield made
    for folder in made.layout.jobs.glob("*"):
        jobs.stop_job(made.layout, folder.name)
    made.end()
