"""What the unit tests share. They import the box's package as `dflash_ops`, as the job runner does."""
from __future__ import annotations

import sys
from pathlib import Path

import pytest

REPO = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(REPO / "plugins" / "module_utils"), str(REPO / "tests" / "unit")]

from dflash_ops.paths import Layout  # noqa: E402


@pytest.fixture
def repo() -> Path:
    """The checkout."""
    return REPO


@pytest.fixture
def layout(tmp_path: Path) -> Layout:
    """A box whose root has a space in its name."""
    return Layout.of(tmp_path / "a box")
