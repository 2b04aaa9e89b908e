"""Shared fixtures of the unit tests, which import the box's package as `dflash_ops` like the job runner."""
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
    """Return the checkout."""
    return REPO


@pytest.fixture
def layout(tmp_path: Path) -> Layout:
    """Return the layout of a box with a space in its root."""
    return Layout.of(tmp_path / "a box")


@pytest.fixture
def box(tmp_path: Path) -> Iterator[Box]:
    """Yield a box, and stop its jobs and processes afterwards."""
    new_box = Box(tmp_path / "root")
    yield new_box
    for folder in new_box.layout.jobs.glob("*"):
        jobs.stop_job(new_box.layout, folder.name)
    new_box.end()
