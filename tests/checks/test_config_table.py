"""docs/trainer-reference.md lists the configuration keys of the trainer."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

REPO = Path(__file__).resolve().parents[2]


def test_documented_keys_equal_the_keys_of_the_trainer() -> None:
    done = subprocess.run(
        [sys.executable, str(REPO / "tools/config_table.py"), "--check"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
