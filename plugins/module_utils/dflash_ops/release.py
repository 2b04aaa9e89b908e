"""Releases: trainer/ at one commit, staged and renamed into place, then compared with its record."""

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
RELEASE_ID = re.compile(r"[0-9a-f]{7,40}(\+dirty\.[0-9a-f]{8,64})?")


@dataclasses.dataclass(frozen=True)
class Spec:
    """Specification of the requested release.

    Args:
        release_id: short commit id, with `+dirty.<hash>` for a tree with uncommitted changes.
        commit: full commit id.
        tree_hash: hash over its files, from `files.tree_hash`.
        subject: first line of the commit message.
    """

    release_id: str
    commit: str
    tree_hash: str
    subject: str

    @classmethod
    def from_params(cls, params: Mapping[str, Any]) -> Spec:
        """Read module arguments.

        Raises:
            OpsError: the id is not a commit id.
        """
        if not RELEASE_ID.fullmatch(params["release_id"]):
            raise OpsError(
                f"Release {params['release_id']!r} is not named after a commit.",
                remedy="omit release_id; the action plugin sets it",
            )
        return cls(**{field.name: params[field.name] for field in dataclasses.fields(cls)})


def inspect(layout: Layout, spec: Spec) -> tuple[str, list[Drift]]:
    """Return the state (complete, missing or drifted) and the differences.

    Raises:
        OpsError: the root is a file.
    """
    disk.require_not_file(layout.root, "dflash_root")
    record = files.read_json(layout.release(spec.release_id) / RECORD_NAME)
    if not record:
        return "missing", []
    if record["tree_hash"] != spec.tree_hash:
        return "drifted", [Drift("edited", RECORD_NAME, "was made from another tree")]
    drift = find_drift(layout, spec.release_id)
    return ("drifted" if drift else "complete"), drift


def find_drift(layout: Layout, release_id: str) -> list[Drift]:
    """Return the differences between a release's files and its record; bytecode is ignored.

    Raises:
        OpsError: the box does not have this release.
    """
    folder = layout.release(release_id)
    record = files.read_json(folder / RECORD_NAME)
    if not record:
        raise OpsError(
            f"The release {release_id} is not on this box.", remedy="run deploy.yml, or relaunch.yml --tags release"
        )
    now = file_hashes(folder / "trainer")
    then = record["files"]
    drift = [Drift("removed", f"trainer/{name}", "was in the release") for name in then.keys() - now.keys()]
    drift += [Drift("added", f"trainer/{name}", "is not in the release") for name in now.keys() - then.keys()]
    drift += [
        Drift("edited", f"trainer/{name}", "was changed in place")
        for name in now.keys() & then.keys()
        if now[name] != then[name]
    ]
    return sorted(drift, key=lambda difference: (difference.kind, difference.path))


def file_hashes(top: Path) -> dict[str, str]:
    """Return the SHA-256 of every file below `top` by path; an `x` is appended for an executable file."""
    hashes = {}
    for path in files.walk_files(top):
        if path.parent.name != "__pycache__":
            hashes[path.relative_to(top).as_posix()] = digest(path) + ("x" if os.access(path, os.X_OK) else "")
    return hashes


def drift_error(spec: Spec, drift: list[Drift]) -> OpsError:
    """Return the error that lists the files of a release that were changed in place."""
    lines = [str(difference) for difference in fold(drift)]
    return OpsError(
        f"The release {spec.release_id} was changed on the box: {truncate.join_items(lines, 30)}.",
        remedy="commit the change and deploy it, or -e trainer_release_heal=true restores the committed files",
        facts={"drift": [dataclasses.asdict(difference) for difference in drift]},
    )


def install(layout: Layout, spec: Spec, archive: Path) -> None:
    """Unpack the archive into a staging directory, verify its tree hash, and rename it into place.

    Raises:
        OpsError: the archive's files do not have the expected tree hash.
    """
    target = layout.release(spec.release_id)
    workdir = layout.releases / f".placing-{spec.release_id}"
    shutil.rmtree(workdir, ignore_errors=True)
    workdir.mkdir(parents=True)
    try:
        unpack(archive, workdir)
        tree_hash = files.tree_hash(workdir / "trainer")
        if tree_hash != spec.tree_hash:
            raise OpsError(
                f"The archive of {spec.release_id} unpacked to tree {tree_hash}, not {spec.tree_hash}.",
                remedy="run again; if the error repeats, check the box's disk",
            )
        files.write_json(
            workdir / RECORD_NAME,
            {
                **dataclasses.asdict(spec),
                "dirty": "+dirty" in spec.release_id,
                "placed_at": time.time(),
                "files": file_hashes(workdir / "trainer"),
            },
        )
        if target.exists():
            exchange(workdir, target)
        else:
            os.rename(workdir, target)
    finally:
        shutil.rmtree(workdir, ignore_errors=True)
    files.fsync_folder(layout.releases)


def unpack(archive: Path, target: Path) -> None:
    """Write the archive's files below `target` with mode 0644 or 0755, independent of the umask.

    Raises:
        OpsError: a member is not a regular file or folder, or lies outside `target`.
    """
    with tarfile.open(archive) as tar:
        for member in tar:
            path = target / member.name
            if not path.resolve().is_relative_to(target.resolve()) or not (member.isfile() or member.isdir()):
                raise OpsError(
                    f"The release contains {member.name}, which is not a regular file or folder below trainer/.",
                    remedy="remove it from trainer/",
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
