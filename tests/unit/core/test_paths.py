"""Expansion of ~ in the folders that an operator sets."""

from __future__ import annotations

import os
import pwd
from pathlib import Path

import pytest
from dflash_ops.core.paths import Layout


def test_home_variable_does_not_change_the_root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    real = Path(pwd.getpwuid(os.getuid()).pw_dir)
    layout = Layout.of("~/box", "~")
    assert (layout.root, layout.workspace) == (real / "box", real)
    assert Layout.of("/opt/~/box").root == Path("/opt/~/box")
