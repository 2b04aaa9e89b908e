"""The published dflash package loads an export and drafts the same blocks (bench/published_loader.py)."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

CANNOT_INSTALL = 3


def test_published_package_loads_an_export_and_drafts_the_same_blocks(repo: Path, tmp_path: Path) -> None:
    report = tmp_path / "report.json"
    command = [sys.executable, str(repo / "bench/published_loader.py"), "--json", str(report)]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    if done.returncode == CANNOT_INSTALL:
        pytest.skip(f"the package dflash cannot be installed here: {done.stderr.strip().splitlines()[-1]}")
    assert done.returncode == 0, done.stdout + done.stderr
    figures = json.loads(report.read_text())
    assert figures["worst_relative_error"] < 1e-5
    assert {(case["target"], case["window"] > 0) for case in figures["cases"]} == {
        (target, window) for target in ("tiny", "qwen3-tiny", "qwen3.6-tiny") for window in (False, True)
    }
