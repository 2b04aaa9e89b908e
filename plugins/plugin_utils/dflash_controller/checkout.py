"""The controller's checkout: its commit, uncommitted files of trainer/, and the archive to push."""

from __future__ import annotations

import dataclasses
import os
import subprocess
import tarfile
import tempfile
from pathlib import Path

from dflash_ops.core import files, truncate
from dflash_ops.core.errors import OpsError
from dflash_ops.release import Spec, unpack

SHORT = 12


@dataclasses.dataclass(frozen=True)
class Snapshot:
    """Snapshot of trainer/ to push.

    Args:
        spec: its name and tree hash.
        archive: tar of trainer/.
    """

    spec: Spec
    archive: Path


def git(repo: Path, *arguments: str) -> str:
    """Run git and return its output.

    Raises:
        OpsError: git is not installed, or failed; with its error message.
    """
    try:
        done = subprocess.run(["git", "-C", str(repo), *arguments], capture_output=True, text=True, check=False)
    except FileNotFoundError:
        raise OpsError("git is not installed on the controller.", remedy="install git") from None
    if done.returncode != 0:
        raise OpsError(
            f"git {' '.join(arguments[:2])} failed in {repo}: {done.stderr.strip()}",
            remedy="the release is made from a git checkout; clone the repository",
        )
    return done.stdout


def changes(repo: Path) -> list[str]:
    """Return the uncommitted changes below trainer/, as `git status` prints them."""
    return git(repo, "status", "--porcelain", "--untracked-files=all", "--", "trainer").splitlines()


@dataclasses.dataclass(frozen=True)
class Choice:
    """The requested state of the checkout.

    Args:
        commit: its id.
        dirty: uncommitted files of trainer/ to include.
    """

    commit: str
    dirty: tuple[str, ...]


def choose(repo: Path, version: str, *, allow_dirty: bool) -> Choice:
    """Resolve a version.

    Args:
        repo: the checkout.
        version: commit, branch or tag; uncommitted files matter only when it is checked out.
        allow_dirty: include uncommitted files; the release's name shows it.

    Raises:
        OpsError: the commit does not exist, or files are not committed.
    """
    commit = commit_of(repo, version)
    if not commit:
        raise OpsError(
            f"trainer_release_version={version} is not a commit of {repo}.", remedy="give a branch, tag or commit"
        )
    checked_out = commit == git(repo, "rev-parse", "HEAD").strip()
    dirty = changes(repo) if checked_out else []
    if dirty and not allow_dirty:
        names = [line[3:] for line in dirty]
        raise OpsError(
            f"{len(dirty)} file(s) of trainer/ are not committed: {truncate.join_items(names, 10, separator=', ')}.",
            remedy="commit them, or include them with -e trainer_release_allow_dirty=true; the release is then named "
            "+dirty (with make: make deploy ARGS='-e trainer_release_allow_dirty=true')",
        )
    return Choice(commit, tuple(dirty))


def release_id(repo: Path, version: str, *, allow_dirty: bool) -> str:
    """Return the name of the release; only uncommitted files have to be packed for it.

    Raises:
        OpsError: as `choose`.
    """
    chosen = choose(repo, version, allow_dirty=allow_dirty)
    if not chosen.dirty:
        return chosen.commit[:SHORT]
    with tempfile.TemporaryDirectory(prefix="dflash-release-") as folder:
        return snapshot(repo, version, Path(folder), allow_dirty=True).spec.release_id


def snapshot(repo: Path, version: str, folder: Path, *, allow_dirty: bool) -> Snapshot:
    """Create the archive of trainer/ in `folder`.

    Raises:
        OpsError: as `choose`.
    """
    chosen = choose(repo, version, allow_dirty=allow_dirty)
    archive = folder / "trainer.tar.gz"
    if chosen.dirty:
        pack(repo, archive)
    else:
        git(repo, "archive", "--format=tar.gz", f"--output={archive}", chosen.commit, "trainer")
    tree = tree_of(archive)
    suffix = f"+dirty.{tree[:SHORT]}" if chosen.dirty else ""
    subject = git(repo, "log", "-1", "--format=%s", chosen.commit).strip()
    return Snapshot(
        Spec(release_id=chosen.commit[:SHORT] + suffix, commit=chosen.commit, tree_hash=tree, subject=subject),
        archive,
    )


def commit_of(repo: Path, version: str) -> str:
    """Return the commit id of a name; empty when it does not exist."""
    git(repo, "rev-parse", "--git-dir")
    try:
        return git(repo, "rev-parse", "--verify", "--quiet", "--end-of-options", f"{version}^{{commit}}").strip()
    except OpsError:
        return ""


def pack(repo: Path, archive: Path) -> None:
    """Write a tar of trainer/ in the work tree, without ignored files."""
    names = git(repo, "ls-files", "-z", "--cached", "--others", "--exclude-standard", "--", "trainer").split("\0")
    with tarfile.open(archive, "w:gz") as tar:
        for name in sorted(set(filter(None, names))):
            if os.path.lexists(repo / name):
                tar.add(repo / name, arcname=name, recursive=False)


def tree_of(archive: Path) -> str:
    """Return the tree hash of an archive's content."""
    with tempfile.TemporaryDirectory() as folder:
        unpack(archive, Path(folder))
        top = Path(folder) / "trainer"
        if not top.is_dir():
            raise OpsError("The commit has no trainer/ folder.", remedy="choose a commit that has one")
        return files.tree_hash(top)
