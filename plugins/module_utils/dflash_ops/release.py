"""Releases: trainer/ at a commit, unpacked aside, complete by one rename, compared with their record afterwards."""

from __future__ import annotations

import dataclasses
import os
import re
import shutil
import tarfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from .core import disk, files, truncate
from .core.errors import OpsError
from .core.paths import Layout
from .core.tree_manifest import Drift, digest, fold
from .environment.build import exchange

RECORD_NAME = "release.json"
GOOD_ID = re.compile(r"[0-9a-f]{7,40}(\+dirty\.[0-9a-f]{8,64})?")


@dataclasses.dataclass(frozen=True)
class Wanted:
    """The release that is asked for.

    Args:
        release_id: short commit, with `+dirty.<hash>` for a tree that was not committed.
        commit: the whole commit id.
        tree_hash: hash over its files, as `files.tree_hash` makes it.
        subject: first line of the commit's message.
    """

    release_id: str
    commit: str
    tree_hash: str
    subject: str

    @classmethod
    def of(cls, want: Mapping[str, Any]) -> Wanted:
        """Read module arguments.

        Raises:
            OpsError: the id is no commit's.
        """
        if not GOOD_ID.fullmatch(want["release_id"]):
            raise OpsError(
                f"Release {want['release_id']!r} is not named by a commit.", remedy="let the action plugin name it"
            )
        return cls(**{field.name: want[field.name] for field in dataclasses.fields(cls)})


def inspect(layout: Layout, wanted: Wanted) -> tuple[str, list[Drift]]:
    """Return complete, missing or drifted, and what differs.

    Raises:
        OpsError: the root is a file, or the box has another tree under this id.
    """
    disk.require_not_file(layout.root, "dflash_root")
    record = files.read_json(layout.release(wanted.release_id) / RECORD_NAME)
    if not record:
        return "missing", []
    if record["tree_hash"] != wanted.tree_hash:
        return "drifted", [Drift("edited", RECORD_NAME, "was made from another tree")]
    drift = check(layout, wanted.release_id)
    return ("drifted" if drift else "complete"), drift


def check(layout: Layout, release_id: str) -> list[Drift]:
    """Return what differs between a release's files and its record; bytecode that python made is left out.

    Raises:
        OpsError: there is no such release.
    """
    place = layout.release(release_id)
    record = files.read_json(place / RECORD_NAME)
    if not record:
        raise OpsError(
            f"The release {release_id} is not on this box.", remedy="run deploy.yml, or relaunch.yml --tags release"
        )
    now = file_hashes(place / "trainer")
    then = record["files"]
    drift = [Drift("removed", f"trainer/{name}", "was in the release") for name in then.keys() - now.keys()]
    drift += [Drift("added", f"trainer/{name}", "is not in the release") for name in now.keys() - then.keys()]
    drift += [
        Drift("edited", f"trainer/{name}", "was changed in place")
        for name in now.keys() & then.keys()
        if now[name] != then[name]
    ]
    return sorted(drift, key=lambda one: (one.kind, one.path))


def file_hashes(top: Path) -> dict[str, str]:
    """Return path to SHA-256 (with `x` behind it when executable) of every file below `top`."""
    found = {}
    for path in files.walk_files(top):
        if path.parent.name != "__pycache__":
            found[path.relative_to(top).as_posix()] = digest(path) + ("x" if os.access(path, os.X_OK) else "")
    return found


def refusal(wanted: Wanted, drift: list[Drift]) -> OpsError:
    """Say that a release was changed in place, file by file."""
    lines = [str(one) for one in fold(drift)]
    return OpsError(
        f"The release {wanted.release_id} was changed on the box: {truncate.join_items(lines, 30)}.",
        remedy="commit the change and deploy it, or -e trainer_release_heal=true places the committed files again",
        facts={"drift": [dataclasses.asdict(one) for one in drift]},
    )


def place(layout: Layout, wanted: Wanted, archive: Path) -> None:
    """Unpack the archive aside, prove its tree, and put it in place in one step.

    Raises:
        OpsError: the archive holds something else than was named.
    """
    target = layout.release(wanted.release_id)
    aside = layout.releases / f".placing-{wanted.release_id}"
    shutil.rmtree(aside, ignore_errors=True)
    aside.mkdir(parents=True)
    try:
        unpack(archive, aside)
        found = files.tree_hash(aside / "trainer")
        if found != wanted.tree_hash:
            raise OpsError(
                f"The archive of {wanted.release_id} unpacked to tree {found}, not {wanted.tree_hash}.",
                remedy="run again; if it repeats, look at the box's disk",
            )
        files.write_json(
            aside / RECORD_NAME,
            {
                **dataclasses.asdict(wanted),
                "dirty": "+dirty" in wanted.release_id,
                "placed_at": time.time(),
                "files": file_hashes(aside / "trainer"),
            },
        )
        if target.exists():
            exchange(aside, target)
        else:
            os.rename(aside, target)
    finally:
        shutil.rmtree(aside, ignore_errors=True)
    files.fsync_folder(layout.releases)


def unpack(archive: Path, target: Path) -> None:
    """Write the archive's files below `target`, with modes 0644 or 0755 whatever the umask; refuse odd members.

    Raises:
        OpsError: naming the member.
    """
    with tarfile.open(archive) as tar:
        for member in tar:
            path = target / member.name
            if not path.resolve().is_relative_to(target.resolve()) or not (member.isfile() or member.isdir()):
                raise OpsError(
                    f"The release holds {member.name}, which is no plain file or folder below trainer/.",
                    remedy="take it out of trainer/",
                )
            if member.isdir():
                path.mkdir(parents=True, exist_ok=True)
                continue
            stream = tar.extractfile(member)
            assert stream is not None
            path.parent.mkdir(parents=True, exist_ok=True)
            with path.open("wb") as out:
                shutil.copyfileobj(stream, out)
            path.chmod(0o755 if member.mode & 0o111 else 0o644)
            os.utime(path, (member.mtime, member.mtime))
