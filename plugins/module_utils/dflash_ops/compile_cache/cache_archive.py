"""A proved compile cache as one file with a checksum, and back again."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import tarfile
import time
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..core import files
from ..core.errors import OpsError
from ..core.paths import SYSTEM_PATH, Layout
from . import cache, manifest
from .cache import CacheKey


def zstd() -> str:
    """Return the zstd program; empty when the box has none."""
    return shutil.which("zstd", path=SYSTEM_PATH) or ""


def find(layout: Layout, cache_id: str) -> Path | None:
    """Return the archive of a cache."""
    names = [layout.archives / f"{cache_id}.tar.{suffix}" for suffix in ("zst", "gz")]
    return next((path for path in names if path.is_file()), None)


def metadata_path(archive: Path) -> Path:
    return archive.with_name(archive.name + ".json")


def is_packable(layout: Layout, key: CacheKey) -> bool:
    """Tell whether the cache is proved and whole and holds anything."""
    return cache.inspect(layout, key).warm and manifest.has_files(layout.cache(key.cache_id))


def is_current(layout: Layout, key: CacheKey) -> bool:
    """Tell whether an archive holds what the cache holds now, byte for byte; an empty cache needs none."""
    folder = layout.cache(key.cache_id)
    if not manifest.has_files(folder):
        return True
    archive, record = find(layout, key.cache_id), manifest.read_record(folder)
    if archive is None or not record:
        return False
    note = read_metadata(archive)
    return (
        note.get("content") == content_hash(record)
        and note.get("shapes") == sorted(record["shapes"])
        and note.get("sha256") == files.file_sha256(archive)
    )


def content_hash(record: Mapping[str, Any]) -> str:
    """Name what a cache holds."""
    return hashlib.sha256(json.dumps(record["files"], sort_keys=True).encode()).hexdigest()


def read_metadata(archive: Path) -> dict[str, Any]:
    """Return the note of an archive; empty when it is missing or no note."""
    note = files.read_json(metadata_path(archive))
    return note if isinstance(note, dict) else {}


def pack(layout: Layout, key: CacheKey) -> dict[str, Any]:
    """Write `archives/<cache_id>.tar.zst` (gz without zstd) and its note with the checksum; return the note.

    Raises:
        OpsError: the cache is not proved or not whole.
    """
    now = cache.inspect(layout, key)
    if not now.warm:
        raise OpsError(
            f"cache {key.cache_id} is {now.state}: {now.reason}; only a proved one is packed.",
            remedy="relaunch.yml --tags warmup",
        )
    layout.archives.mkdir(parents=True, exist_ok=True)
    tool = zstd()
    archive = layout.archives / f"{key.cache_id}.tar.{'zst' if tool else 'gz'}"
    spare = archive.with_name(f".{archive.name}.{os.getpid()}")
    folder = layout.cache(key.cache_id)
    record = manifest.read_record(folder)
    try:
        _write(spare, folder, [*record["files"], manifest.RECORD], tool)
        note = {
            "archive": archive.name,
            "sha256": files.file_sha256(spare),
            "bytes": spare.stat().st_size,
            "cache_id": key.cache_id,
            "env_id": record["env_id"],
            "hardware": record["hardware"],
            "shapes": sorted(record["shapes"]),
            "files": len(record["files"]),
            "content": content_hash(record),
            "packed_at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        }
        os.replace(spare, archive)
    finally:
        spare.unlink(missing_ok=True)
    files.write_json(metadata_path(archive), note)
    return {**note, "path": str(archive)}


def _write(target: Path, folder: Path, names: list[str], tool: str) -> None:
    if not tool:
        with tarfile.open(target, "w:gz", compresslevel=6) as out:
            _add(out, folder, names)
        return
    with target.open("wb") as stream:
        child = subprocess.Popen([tool, "-q", "-T0", "-3", "-c"], stdin=subprocess.PIPE, stdout=stream)
        assert child.stdin is not None
        with tarfile.open(fileobj=child.stdin, mode="w|") as out:
            _add(out, folder, names)
        child.stdin.close()
        if child.wait() != 0:
            raise OpsError(
                f"zstd ended with rc {child.returncode} while packing {folder}.", remedy="look at free space"
            )


def _add(out: tarfile.TarFile, folder: Path, names: list[str]) -> None:
    for name in names:
        out.add(folder / name, arcname=name, recursive=False)


def check(archive: Path, key: CacheKey) -> None:
    """See that an archive's bytes and its origin fit this box.

    Raises:
        OpsError: it is missing or damaged, or was made for another environment or other hardware.
    """
    note = read_metadata(archive)
    if not note or not archive.is_file():
        raise OpsError(
            f"the archive {archive} or its note {metadata_path(archive).name} is missing or damaged.",
            remedy="keep the two files of an archive together, or prewarm without it (relaunch.yml --tags warmup)",
        )
    digest = files.file_sha256(archive)
    if digest != note.get("sha256"):
        raise OpsError(
            f"{archive} is damaged: its sha256 is {digest}, its note says {note.get('sha256')}.",
            remedy="fetch it again, or prewarm without it (relaunch.yml --tags warmup)",
        )
    for field, mine in (("env_id", key.env_id), ("hardware", key.hardware)):
        if note.get(field) != mine:
            raise OpsError(
                f"{archive} was made for {field} {note.get(field)!r}, and this box has {mine!r}.",
                remedy="restore it where both are equal; here a prewarm is needed",
            )


def unpack(archive: Path, key: CacheKey, folder: Path, old: Path) -> None:
    """Make `folder` of the archive's files and of what `old` holds beside them, whole or not at all.

    Nothing counts as proved then: a process of this box has to find all of it first.

    Raises:
        OpsError: `check` refuses the archive, or its files are not what its record says.
    """
    check(archive, key)
    aside = folder.with_name(f".{folder.name}.restore")
    shutil.rmtree(aside, ignore_errors=True)
    aside.mkdir(parents=True)
    try:
        _read(archive, aside)
        record = manifest.read_record(aside)
        if not record or list(manifest.damaged_files(aside, record["files"])):
            raise OpsError(f"{archive} unpacks to files that its record does not know.", remedy="fetch it again")
        kept = _keep_more(old, aside)
        listed = {**kept, **record["files"]}
        files.write_json(
            aside / manifest.RECORD, {**record, "files": listed, "shapes": {}, "restored_from": archive.name}
        )
        os.rename(aside, folder)
    finally:
        shutil.rmtree(aside, ignore_errors=True)


def _keep_more(old: Path, folder: Path) -> dict[str, Any]:
    """Copy the whole files of `old` that `folder` lacks: other shapes need them; return their rows of the record."""
    listed = dict(manifest.read_record(old).get("files") or {})
    bad = set(manifest.damaged_files(old, listed))
    kept = {name: row for name, row in listed.items() if name not in bad and not (folder / name).exists()}
    for name in kept:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(old / name, folder / name)
    return kept


def _read(archive: Path, folder: Path) -> None:
    try:
        _read_tar(archive, folder)
    except (tarfile.TarError, EOFError, zlib.error) as error:
        raise OpsError(f"{archive} is no archive of a cache: {error}.", remedy="fetch it again") from error


def _read_tar(archive: Path, folder: Path) -> None:
    if archive.suffix == ".gz":
        with tarfile.open(archive, "r:gz") as source:
            _extract(source, folder)
        return
    tool = zstd()
    if not tool:
        raise OpsError(f"{archive} needs zstd, which is missing.", remedy="install the package zstd on the box")
    child = subprocess.Popen([tool, "-q", "-d", "-c", str(archive)], stdout=subprocess.PIPE)
    assert child.stdout is not None
    with tarfile.open(fileobj=child.stdout, mode="r|") as source:
        _extract(source, folder)
    child.stdout.close()
    if child.wait() != 0:
        raise OpsError(f"zstd ended with rc {child.returncode} while unpacking {archive}.", remedy="fetch it again")


def _extract(source: tarfile.TarFile, folder: Path) -> None:
    """Write plain files below `folder` and nothing else, whatever the archive says."""
    for member in source:
        place = folder / member.name
        if not member.isfile() or ".." in Path(member.name).parts or Path(member.name).is_absolute():
            raise OpsError(
                f"the archive holds {member.name!r}, which is no plain file below the cache.", remedy="do not use it"
            )
        place.parent.mkdir(parents=True, exist_ok=True)
        content = source.extractfile(member)
        assert content is not None
        with place.open("wb") as stream:
            shutil.copyfileobj(content, stream)
        place.chmod(member.mode & 0o755)
        os.utime(place, (member.mtime, member.mtime))
