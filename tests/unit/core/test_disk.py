"""Messages about unusable folders and full disks name the variable."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest
from dflash_ops.core import disk, jobs
from dflash_ops.core.errors import OpsError
from dflash_ops.core.paths import Layout


@pytest.mark.parametrize("create", [True, False])
def test_workspace_that_is_a_file_is_rejected(tmp_path: Path, create: bool) -> None:
    (tmp_path / "big").write_text("")
    with pytest.raises(OpsError, match=r"dflash_workspace=.*big is a file.*dflash_workspace to a folder"):
        disk.require_writable(Layout.of(tmp_path / "root", tmp_path / "big"), create=create)


def test_root_that_cannot_be_created_names_its_variable() -> None:
    with pytest.raises(OpsError, match=r"dflash_root=/proc/none/x cannot be created: .* Remedy: set dflash_root"):
        disk.require_writable(Layout.of("/proc/none/x"), create=True)


def test_root_without_write_permission_is_rejected(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "access", lambda path, _mode: Path(path) != tmp_path)
    with pytest.raises(OpsError, match=r"dflash_root=.*cannot write to .* Remedy: set dflash_root"):
        disk.require_writable(Layout.of(tmp_path / "a box"), create=False)
    assert not (tmp_path / "a box").exists()


def test_root_that_is_a_dangling_symlink_is_rejected(tmp_path: Path) -> None:
    (tmp_path / "root").symlink_to(tmp_path / "gone")
    with pytest.raises(OpsError, match="a dangling symlink"):
        disk.require_writable(Layout.of(tmp_path / "root"), create=True)


def test_message_for_a_full_disk_names_the_variable(layout: Layout, tmp_path: Path) -> None:
    full = OSError(errno.ENOSPC, "No space left on device", str(tmp_path / "big/runs/x"))
    explained = disk.explain_os_error(full, Layout.of(layout.root, tmp_path / "big"))
    assert explained is not None
    assert "disk is full" in explained.message
    assert "dflash_workspace" in explained.remedy
    assert disk.explain_os_error(OSError(errno.ENOENT, "No such file", "x"), layout) is None


def test_empty_workspace_means_the_root(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("dflash_ops.core.paths.WORKSPACE", tmp_path)
    assert Layout.of("/opt/dflash", "").workspace == Path("/opt/dflash")
    assert Layout.of("/opt/dflash", "auto").workspace == tmp_path


def test_job_on_a_full_disk_fails_with_a_remedy(layout: Layout, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("dflash_ops.environment.build.build", full)
    folder = layout.job("j")
    folder.mkdir(parents=True)
    message = {"entry": "environment.build:build", "arguments": {"root": str(layout.root), "workspace": ""}}
    ended = jobs._run_entry(message, jobs.Progress(folder))
    assert ended["message"].startswith("The disk is full")
    assert "dflash_root" in ended["remedy"]
