"""Releases from a real git checkout: archived, placed, compared, healed."""

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
    """A checkout with a committed trainer/: an empty file, a script, a name with a space."""
    repo = tmp_path / "checkout"
    files.write_text(repo / "trainer/package/__init__.py", "")
    files.write_text(repo / "trainer/package/train.py", "STEP = 1\n")
    files.write_text(repo / "trainer/configs/a b.toml", "x = 1\n")
    files.write_text(repo / "trainer/run.sh", "#!/bin/sh\n", mode=0o755)
    files.write_text(repo / "other.txt", "not of the trainer\n")
    for words in (["init", "-q"], ["add", "."], ["commit", "-q", "-m", "feat: first"]):
        run_git(repo, *words)
    return repo


def run_git(repo: Path, *words: str) -> str:
    identity = ["-c", "user.name=A", "-c", "user.email=a@example.org", "-c", "commit.gpgsign=false"]
    return subprocess.run(
        ["git", "-C", str(repo), *identity, *words], check=True, capture_output=True, text=True
    ).stdout


@pytest.fixture
def push(source: Path, layout: Layout, tmp_path: Path) -> Callable[..., release.Wanted]:
    """Snapshot the checkout and place it, as action and module do."""

    def run(version: str = "HEAD", *, allow_dirty: bool = False) -> release.Wanted:
        made = checkout.snapshot(source, version, tmp_path, allow_dirty=allow_dirty)
        if release.inspect(layout, made.wanted)[0] != "complete":
            release.place(layout, made.wanted, made.archive)
        return made.wanted

    return run


def test_release_holds_the_commit_and_only_trainer(
    layout: Layout, source: Path, push: Callable[..., release.Wanted]
) -> None:
    wanted = push()
    top = layout.release(wanted.release_id) / "trainer"
    assert run_git(source, "rev-parse", "HEAD").startswith(wanted.release_id)
    assert sorted(path.relative_to(top).as_posix() for path in files.walk_files(top)) == [
        "configs/a b.toml",
        "package/__init__.py",
        "package/train.py",
        "run.sh",
    ]
    assert (top / "package/__init__.py").stat().st_size == 0
    assert {oct((top / name).stat().st_mode & 0o777) for name in ("run.sh", "package/train.py")} == {"0o755", "0o644"}
    assert (files.read_json(layout.release(wanted.release_id) / "release.json") or {})["subject"] == "feat: first"
    assert release.inspect(layout, wanted) == ("complete", [])


@pytest.mark.parametrize("dirty", [False, True])
def test_a_release_is_named_before_it_is_made(
    source: Path, push: Callable[..., release.Wanted], dirty: bool
) -> None:
    if dirty:
        (source / "trainer/package/new.py").write_text("x = 1\n")
    named = checkout.release_id(source, "HEAD", allow_dirty=True)
    assert named == push(allow_dirty=True).release_id
    assert ("+dirty" in named) is dirty


def test_modes_do_not_follow_the_umask(layout: Layout, push: Callable[..., release.Wanted]) -> None:
    old = os.umask(0o077)
    try:
        wanted = push()
    finally:
        os.umask(old)
    assert (layout.release(wanted.release_id) / "trainer/package/train.py").stat().st_mode & 0o777 == 0o644


def test_an_older_commit_can_be_asked_for_while_the_tree_is_dirty(
    source: Path, push: Callable[..., release.Wanted]
) -> None:
    first = run_git(source, "rev-parse", "HEAD").strip()
    files.write_text(source / "trainer/package/train.py", "STEP = 2\n")
    run_git(source, "commit", "-qam", "feat: second")
    files.write_text(source / "trainer/package/train.py", "STEP = 3\n")
    assert push(first).commit == first


def test_files_that_are_not_committed_are_refused_by_name(
    source: Path, layout: Layout, push: Callable[..., release.Wanted]
) -> None:
    files.write_text(source / "trainer/package/train.py", "STEP = 2\n")
    files.write_text(source / "trainer/new file.py", "")
    with pytest.raises(
        OpsError, match=r"2 file\(s\) of trainer/ are not committed: .*train\.py.*new file\.py"
    ) as caught:
        push()
    assert "trainer_release_allow_dirty=true" in caught.value.remedy
    assert not layout.root.exists()


def test_a_dirty_release_is_named_by_its_content(
    source: Path, layout: Layout, push: Callable[..., release.Wanted]
) -> None:
    files.write_text(source / "trainer/package/train.py", "STEP = 2\n")
    files.write_text(source / "trainer/new.py", "")
    one, same = push(allow_dirty=True), push(allow_dirty=True)
    files.write_text(source / "trainer/new.py", "# more\n")
    other = push(allow_dirty=True)
    assert "+dirty." in one.release_id
    assert one == same
    assert one.release_id != other.release_id
    assert (layout.release(one.release_id) / "trainer/package/train.py").read_text() == "STEP = 2\n"


def test_dirt_outside_trainer_does_not_matter(source: Path, push: Callable[..., release.Wanted]) -> None:
    files.write_text(source / "other.txt", "changed\n")
    assert "+dirty" not in push().release_id


def test_code_changed_on_the_box_is_named_and_healed(
    layout: Layout, source: Path, tmp_path: Path, push: Callable[..., release.Wanted]
) -> None:
    wanted = push()
    top = layout.release(wanted.release_id) / "trainer"
    (top / "package/train.py").write_text("STEP = 99\n")
    (top / "package/extra.py").write_text("")
    (top / "run.sh").unlink()
    state, drift = release.inspect(layout, wanted)
    assert state == "drifted"
    assert {(one.kind, one.path) for one in drift} == {
        ("edited", "trainer/package/train.py"),
        ("added", "trainer/package/extra.py"),
        ("removed", "trainer/run.sh"),
    }
    assert "trainer_release_heal=true" in release.refusal(wanted, drift).remedy
    push()
    assert release.inspect(layout, wanted) == ("complete", [])
    assert [path.name for path in layout.releases.iterdir()] == [wanted.release_id]


def test_bytecode_that_python_made_is_no_drift(layout: Layout, push: Callable[..., release.Wanted]) -> None:
    wanted = push()
    files.write_text(layout.release(wanted.release_id) / "trainer/package/__pycache__/train.cpython-311.pyc", "x")
    assert release.inspect(layout, wanted) == ("complete", [])


def test_an_archive_with_another_tree_is_not_placed(layout: Layout, source: Path, tmp_path: Path) -> None:
    made = checkout.snapshot(source, "HEAD", tmp_path, allow_dirty=False)
    lying = release.Wanted(**{**made.wanted.__dict__, "tree_hash": "0" * 64})
    with pytest.raises(OpsError, match="unpacked to tree"):
        release.place(layout, lying, made.archive)
    assert list(layout.releases.iterdir()) == []


@pytest.mark.parametrize("name", ["../outside.py", "trainer/link"])
def test_odd_members_are_refused(tmp_path: Path, name: str) -> None:
    archive = tmp_path / "x.tar"
    with tarfile.open(archive, "w") as tar:
        member = tarfile.TarInfo(name)
        if name.endswith("link"):
            member.type, member.linkname = tarfile.SYMTYPE, "/etc/passwd"
        tar.addfile(member, io.BytesIO())
    with pytest.raises(OpsError, match="no plain file"):
        release.unpack(archive, tmp_path / "out")


@pytest.mark.parametrize("version", ["nope", "-x", ""])
def test_an_unknown_commit_is_named(source: Path, tmp_path: Path, version: str) -> None:
    with pytest.raises(OpsError, match="trainer_release_version="):
        checkout.snapshot(source, version, tmp_path, allow_dirty=False)


def test_a_folder_that_is_no_checkout_is_named(tmp_path: Path) -> None:
    (tmp_path / "plain").mkdir()
    with pytest.raises(OpsError, match=r"not a git repository"):
        checkout.snapshot(tmp_path / "plain", "HEAD", tmp_path, allow_dirty=False)
