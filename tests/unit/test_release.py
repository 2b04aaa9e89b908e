"""Releases from a real git checkout: archived, installed, compared, healed."""

from __future__ import annotations

import io
import os
import subprocess
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest
from dflash_controller import checkout
from dflash_ops import release
from dflash_ops.core import files
from dflash_ops.core.errors import OpsError
from dflash_ops.core.paths import Layout


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """Checkout with a committed trainer/: an empty file, a script, and a name with a space."""
    repo = tmp_path / "checkout"
    files.write_text(repo / "trainer/package/__init__.py", "")
    files.write_text(repo / "trainer/package/train.py", "STEP = 1\n")
    files.write_text(repo / "trainer/configs/a b.toml", "x = 1\n")
    files.write_text(repo / "trainer/run.sh", "#!/bin/sh\n", mode=0o755)
    files.write_text(repo / "other.txt", "outside trainer/\n")
    for command in (["init", "-q"], ["add", "."], ["commit", "-q", "-m", "feat: first"]):
        run_git(repo, *command)
    return repo


def run_git(repo: Path, *arguments: str) -> str:
    """Run git in a repository with a test identity, and return its output."""
    identity = ["-c", "user.name=A", "-c", "user.email=a@example.org", "-c", "commit.gpgsign=false"]
    return subprocess.run(
        ["git", "-C", str(repo), *identity, *arguments], check=True, capture_output=True, text=True
    ).stdout


@pytest.fixture
def deploy(source: Path, layout: Layout, tmp_path: Path) -> Callable[..., release.Spec]:
    """Return a function that archives the checkout and installs the release, as action and module do."""

    def run(version: str = "HEAD", *, allow_dirty: bool = False) -> release.Spec:
        snapshot = checkout.snapshot(source, version, tmp_path, allow_dirty=allow_dirty)
        if release.inspect(layout, snapshot.spec)[0] != "complete":
            release.install(layout, snapshot.spec, snapshot.archive)
        return snapshot.spec

    return run


def test_release_contains_only_trainer_of_the_commit(
    layout: Layout, source: Path, deploy: Callable[..., release.Spec]
) -> None:
    spec = deploy()
    top = layout.release(spec.release_id) / "trainer"
    assert run_git(source, "rev-parse", "HEAD").startswith(spec.release_id)
    assert sorted(path.relative_to(top).as_posix() for path in files.walk_files(top)) == [
        "configs/a b.toml",
        "package/__init__.py",
        "package/train.py",
        "run.sh",
    ]
    assert (top / "package/__init__.py").stat().st_size == 0
    assert {oct((top / name).stat().st_mode & 0o777) for name in ("run.sh", "package/train.py")} == {"0o755", "0o644"}
    assert (files.read_json(layout.release(spec.release_id) / "release.json") or {})["subject"] == "feat: first"
    assert release.inspect(layout, spec) == ("complete", [])


@pytest.mark.parametrize("dirty", [False, True])
def test_release_id_is_known_before_the_deploy(
    source: Path, deploy: Callable[..., release.Spec], dirty: bool
) -> None:
    if dirty:
        (source / "trainer/package/new.py").write_text("x = 1\n")
    predicted = checkout.release_id(source, "HEAD", allow_dirty=True)
    assert predicted == deploy(allow_dirty=True).release_id
    assert ("+dirty" in predicted) is dirty


def test_file_modes_are_independent_of_the_umask(layout: Layout, deploy: Callable[..., release.Spec]) -> None:
    old = os.umask(0o077)
    try:
        spec = deploy()
    finally:
        os.umask(old)
    assert (layout.release(spec.release_id) / "trainer/package/train.py").stat().st_mode & 0o777 == 0o644


def test_older_commit_can_be_deployed_from_a_dirty_tree(
    source: Path, deploy: Callable[..., release.Spec]
) -> None:
    first = run_git(source, "rev-parse", "HEAD").strip()
    files.write_text(source / "trainer/package/train.py", "STEP = 2\n")
    run_git(source, "commit", "-qam", "feat: second")
    files.write_text(source / "trainer/package/train.py", "STEP = 3\n")
    assert deploy(first).commit == first


def test_uncommitted_files_are_listed_and_rejected(
    source: Path, layout: Layout, deploy: Callable[..., release.Spec]
) -> None:
    files.write_text(source / "trainer/package/train.py", "STEP = 2\n")
    files.write_text(source / "trainer/new file.py", "")
    with pytest.raises(
        OpsError, match=r"2 file\(s\) of trainer/ are not committed: .*train\.py.*new file\.py"
    ) as caught:
        deploy()
    assert "trainer_release_allow_dirty=true" in caught.value.remedy
    assert not layout.root.exists()


def test_dirty_release_id_depends_on_the_content(
    source: Path, layout: Layout, deploy: Callable[..., release.Spec]
) -> None:
    files.write_text(source / "trainer/package/train.py", "STEP = 2\n")
    files.write_text(source / "trainer/new.py", "")
    first, repeated = deploy(allow_dirty=True), deploy(allow_dirty=True)
    files.write_text(source / "trainer/new.py", "# more\n")
    other = deploy(allow_dirty=True)
    assert "+dirty." in first.release_id
    assert first == repeated
    assert first.release_id != other.release_id
    assert (layout.release(first.release_id) / "trainer/package/train.py").read_text() == "STEP = 2\n"


def test_uncommitted_files_outside_trainer_are_ignored(source: Path, deploy: Callable[..., release.Spec]) -> None:
    files.write_text(source / "other.txt", "changed\n")
    assert "+dirty" not in deploy().release_id


def test_code_changed_on_the_box_is_listed_and_healed(
    layout: Layout, source: Path, tmp_path: Path, deploy: Callable[..., release.Spec]
) -> None:
    spec = deploy()
    top = layout.release(spec.release_id) / "trainer"
    (top / "package/train.py").write_text("STEP = 99\n")
    (top / "package/extra.py").write_text("")
    (top / "run.sh").unlink()
    state, drift = release.inspect(layout, spec)
    assert state == "drifted"
    assert {(difference.kind, difference.path) for difference in drift} == {
        ("edited", "trainer/package/train.py"),
        ("added", "trainer/package/extra.py"),
        ("removed", "trainer/run.sh"),
    }
    assert "trainer_release_heal=true" in release.drift_error(spec, drift).remedy
    deploy()
    assert release.inspect(layout, spec) == ("complete", [])
    assert [path.name for path in layout.releases.iterdir()] == [spec.release_id]


def test_bytecode_is_not_drift(layout: Layout, deploy: Callable[..., release.Spec]) -> None:
    spec = deploy()
    files.write_text(layout.release(spec.release_id) / "trainer/package/__pycache__/train.cpython-311.pyc", "x")
    assert release.inspect(layout, spec) == ("complete", [])


def test_archive_with_another_tree_hash_is_not_installed(layout: Layout, source: Path, tmp_path: Path) -> None:
    snapshot = checkout.snapshot(source, "HEAD", tmp_path, allow_dirty=False)
    mismatched = release.Spec(**{**snapshot.spec.__dict__, "tree_hash": "0" * 64})
    with pytest.raises(OpsError, match="unpacked to tree"):
        release.install(layout, mismatched, snapshot.archive)
    assert list(layout.releases.iterdir()) == []


@pytest.mark.parametrize("name", ["../outside.py", "trainer/link"])
def test_links_and_paths_outside_are_rejected(tmp_path: Path, name: str) -> None:
    archive = tmp_path / "x.tar"
    with tarfile.open(archive, "w") as tar:
        member = tarfile.TarInfo(name)
        if name.endswith("link"):
            member.type, member.linkname = tarfile.SYMTYPE, "/etc/passwd"
        tar.addfile(member, io.BytesIO())
    with pytest.raises(OpsError, match="not a regular file"):
        release.unpack(archive, tmp_path / "out")


@pytest.mark.parametrize("version", ["nope", "-x", ""])
def test_unknown_commit_is_rejected(source: Path, tmp_path: Path, version: str) -> None:
    with pytest.raises(OpsError, match="trainer_release_version="):
        checkout.snapshot(source, version, tmp_path, allow_dirty=False)


def test_folder_without_a_git_repository_is_rejected(tmp_path: Path) -> None:
    (tmp_path / "plain").mkdir()
    with pytest.raises(OpsError, match=r"not a git repository"):
        checkout.snapshot(tmp_path / "plain", "HEAD", tmp_path, allow_dirty=False)
