"""Archive of a checked compile cache: one tar file and its metadata file, which holds the checksum."""

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
    """Return the path of the zstd program; empty when the box has none."""
    return shutil.which("zstd", path=SYSTEM_PATH) or ""


def find(layout: Layout, cache_id: str) -> Path | None:
    """Return the archive of a cache, if there is one."""
    names = [layout.archives / f"{cache_id}.tar.{suffix}" for suffix in ("zst", "gz")]
    return next((path for path in names if path.is_file()), None)


def metadata_path(archive: Path) -> Path:
    """Return the path of an archive's metadata file."""
    return archive.with_name(archive.name + ".json")


def is_packable(layout: Layout, key: CacheKey) -> bool:
    """Return whether the cache is warm and not empty."""
    return cache.inspect(layout, key).warm and manifest.has_files(layout.cache(key.cache_id))


def is_current(layout: Layout, key: CacheKey) -> bool:
    """Return whether an archive holds exactly the cache's files; an empty cache needs no archive."""
    folder = layout.cache(key.cache_id)
    if not manifest.has_files(folder):
        return True
    archive, record = find(layout, key.cache_id), manifest.read_record(folder)
    if archive is None or not record:
        return False
    metadata = read_metadata(archive)
    return (
        metadata.get("content") == content_hash(record)
        and metadata.get("shapes") == sorted(record["shapes"])
        and metadata.get("sha256") == files.file_sha256(archive)
    )


def content_hash(record: Mapping[str, Any]) -> str:
    """Return one hash over all files of a cache's record."""
    return hashlib.sha256(json.dumps(record["files"], sort_keys=True).encode()).hexdigest()


def read_metadata(archive: Path) -> dict[str, Any]:
    """Return the metadata of an archive; empty when the file is missing or malformed."""
    metadata = files.read_json(metadata_path(archive))
    return metadata if isinstance(metadata, dict) else {}


def pack(layout: Layout, key: CacheKey) -> dict[str, Any]:
    """Write `archives/<cache_id>.tar.zst` (gz without zstd) and its metadata file; return the metadata.

    Raises:
        OpsError: the cache is not warm.
    """
    state = cache.inspect(layout, key)
    if not state.warm:
        raise OpsError(
            f"Cache {key.cache_id} is {state.state}: {state.reason}. Only a checked cache can be packed.",
            remedy="relaunch.yml --tags warmup",
        )
    layout.archives.mkdir(parents=True, exist_ok=True)
    tool = zstd()
    archive = layout.archives / f"{key.cache_id}.tar.{'zst' if tool else 'gz'}"
    staging = archive.with_name(f".{archive.name}.{os.getpid()}")
    folder = layout.cache(key.cache_id)
    record = manifest.read_record(folder)
    try:
        _write(staging, folder, [*record["files"], manifest.RECORD], tool)
        metadata = {
            "archive": archive.name,
            "sha256": files.file_sha256(staging),
            "bytes": staging.stat().st_size,
            "cache_id": key.cache_id,
            "env_id": record["env_id"],
            "hardware": record["hardware"],
            "shapes": sorted(record["shapes"]),
            "files": len(record["files"]),
            "content": content_hash(record),
            "packed_at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        }
        os.replace(staging, archive)
    finally:
        staging.unlink(missing_ok=True)
    files.write_json(metadata_path(archive), metadata)
    return {**metadata, "path": str(archive)}


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
                f"zstd ended with rc {child.returncode} while packing {folder}.", remedy="check the free disk space"
            )


def _add(out: tarfile.TarFile, folder: Path, names: list[str]) -> None:
    for name in names:
        out.add(folder / name, arcname=name, recursive=False)


def check(archive: Path, key: CacheKey) -> None:
    """Check that an archive is undamaged and was made for this environment and hardware.

    Raises:
        OpsError: it is missing or damaged, or was made for another environment or other hardware.
    """
    metadata = read_metadata(archive)
    if not metadata or not archive.is_file():
        raise OpsError(
            f"The archive {archive} or its metadata file {metadata_path(archive).name} is missing or damaged.",
            remedy="keep both files of an archive together, or prewarm without it (relaunch.yml --tags warmup)",
        )
    digest = files.file_sha256(archive)
    if digest != metadata.get("sha256"):
        raise OpsError(
            f"{archive} is damaged: its sha256 is {digest}, its metadata file records {metadata.get('sha256')}.",
            remedy="fetch it again, or prewarm without it (relaunch.yml --tags warmup)",
        )
    for field, value in (("env_id", key.env_id), ("hardware", key.hardware)):
        if metadata.get(field) != value:
            raise OpsError(
                f"{archive} was made for {field} {metadata.get(field)!r}, and this box has {value!r}.",
                remedy="restore it on a box where both are equal, or prewarm here (relaunch.yml --tags warmup)",
            )


def unpack(archive: Path, key: CacheKey, folder: Path, old: Path) -> None:
    """Create `folder` atomically from the archive and from files of `old` that the archive lacks.

    The new record lists no checked shape: a process of this box has to check the restored cache first.

    Args:
        archive: the archive on this box.
        key: the cache it is restored to.
        folder: the new cache.
        old: the backup of the previous cache.

    Raises:
        OpsError: `check` rejects the archive, or its files differ from its record.
    """
    check(archive, key)
    staging = folder.with_name(f".{folder.name}.restore")
    shutil.rmtree(staging, ignore_errors=True)
    staging.mkdir(parents=True)
    try:
        _read(archive, staging)
        record = manifest.read_record(staging)
        if not record or list(manifest.damaged_files(staging, record["files"])):
            raise OpsError(f"The files in {archive} differ from its record.", remedy="fetch it again")
        listed = {**_copy_missing(old, staging), **record["files"]}
        new_record = {**record, "files": listed, "shapes": {}, "restored_from": archive.name}
        files.write_json(staging / manifest.RECORD, new_record)
        os.rename(staging, folder)
    finally:
        shutil.rmtree(staging, ignore_errors=True)


def _copy_missing(old: Path, folder: Path) -> dict[str, Any]:
    """Copy undamaged files of `old` that `folder` lacks, for other shapes; return their rows of the record."""
    listed = dict(manifest.read_record(old).get("files") or {})
    damaged = set(manifest.damaged_files(old, listed))
    copied = {name: row for name, row in listed.items() if name not in damaged and not (folder / name).exists()}
    for name in copied:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(old / name, folder / name)
    return copied


def _read(archive: Path, folder: Path) -> None:
    try:
        _read_tar(archive, folder)
    except (tarfile.TarError, EOFError, zlib.error) as error:
        raise OpsError(f"{archive} is not an archive of a cache: {error}.", remedy="fetch it again") from error


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
    """Extract regular files below `folder` and reject every other member."""
    for member in source:
        target = folder / member.name
        if not member.isfile() or ".." in Path(member.name).parts or Path(member.name).is_absolute():
            raise OpsError(
                f"The archive holds {member.name!r}, which is not a regular file below the cache.",
                remedy="do not use this archive",
            )
        target.parent.mkdir(parents=True, exist_ok=True)
        content = source.extractfile(member)
        assert content is not None
        with target.open("wb") as stream:
            shutil.copyfileobj(content, stream)
        target.chmod(member.mode & 0o755)
        os.utime(target, (member.mtime, member.mtime))
