"""Fixtures of the trainer's tests: small real datasets and models."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

REPO = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(REPO / "trainer"), str(REPO / "tests" / "trainer")]
os.environ.setdefault("OMP_NUM_THREADS", "1")

from tiny_runs import TinyRun, write_dataset  # noqa: E402


@pytest.fixture
def repo() -> Path:
    """Return the root of the checkout."""
    return REPO


@pytest.fixture
def tiny(tmp_path: Path) -> TinyRun:
    """Return a tiny random target with a real dataset of 24 training and 6 held-out samples."""
    write_dataset(tmp_path / "train", samples=24, seed=1)
    write_dataset(tmp_path / "eval", samples=6, seed=2)
    return TinyRun(tmp_path)
