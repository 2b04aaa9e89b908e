"""A leading ~ in an operator's path is the home of the password file, where Ansible copies files to as well."""

from __future__ import annotations

import os
import pwd
from pathlib import Path

import pytest
from dflash_ops.core.paths import Layout


def test_a_home_variable_of_somebody_else_moves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    real = Path(pwd.getpwuid(os.getuid()).pw_dir)
    layout = Layout.of("~/box", "~")
    assert (layout.root, layout.workspace) == (real / "box", real)
    assert Layout.of("/opt/~/box").root == Path("/opt/~/box")
