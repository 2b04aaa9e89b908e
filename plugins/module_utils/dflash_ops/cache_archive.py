"""A proved compile cache as one file with a checksum, and back again."""

from __future__ import annotations

import os
import shutil
import subprocess
import tarfile
import time
from pathlib import Path
from typing import Any

from . import cache, files, trainer_command
from .cache import Place
from .errors import OpsError
from .paths import Layout


def zstd() -> str:
    """Return the zstd program; empty when the box has none."""
    return shutil.which("zstd", path=trainer_command.SYSTEM_PATH) or ""


def find(layout: Layout, cache_id: str) -> Path | None:
    """Return the archive of a cache."""
    names = [layout.archives / f"{cache_id}.tar.{suffix}" for suffix in ("zst", "gz")]
    return next((path for path in names if path.is_file()), None)


def note_of(archive: Path) -> Path:
    return archive.with_name(archive.name + ".json")


def packable(layout: Layout, where: Place) -> bool:
    """Tell whether the cache is proved and whole and holds anything."""
    return cache.look(layout, where).warm and cache.has_files(layout.cache(where.cache_id))


def current(layout: Layout, where: Place) -> bool:
    """Tell whether an archive holds what the cache holds now; an empty cache needs none."""
    if not cache.has_files(layout.cache(where.cache_id)):
        return True
    archive = find(layout, where.cache_id)
    note = files.read_json(note_of(archive)) if archive else None
    record = cache.read_record(layout.cache(where.cache_id))
    return bool(
        note and record and note.get("shapes") == sorted(record["shapes"]) and note.get("files") == len(record["files"])
    )


def pack(layout: Layout, where: Place) -> dict[str, Any]:
    """Write `archives/<cache_id>.tar.zst` (gz without zstd) and its note with the checksum; return the note.

    Raises:
        OpsError: the cache is not proved or not whole.
    """
    now = cache.look(layout, where)
    if not now.warm:
        raise OpsError(
            f"cache {where.cache_id} is {now.state}: {now.reason}; only a proved one is packed.",
            remedy="relaunch.yml --tags warmup",
        )
    layout.archives.mkdir(parents=True, exist_ok=True)
    tool = zstd()
    archive = layout.archives / f"{where.cache_id}.tar.{'zst' if tool else 'gz'}"
    spare = archive.with_name(f".{archive.name}.{os.getpid()}")
    folder, record = layout.cache(where.cache_id), cache.read_record(layout.cache(where.cache_id))
    try:
        _write(spare, folder, [*record["files"], cache.RECORD], tool)
        note = {
            "archive": archive.name,
            "sha256": files.file_sha256(spare),
            "bytes": spare.stat().st_size,
            "cache_id": where.cache_id,
            "env_id": record["env_id"],
            "hardware": record["hardware"],
            "shapes": sorted(record["shapes"]),
            "files": len(record["files"]),
            "packed_at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        }
        os.replace(spare, archive)
    finally:
        spare.unlink(missing_ok=True)
    files.write_json(note_of(archive), note)
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


def check(archive: Path, where: Place) -> dict[str, Any]:
    """Return the archive's note when its bytes and its origin fit this box.

    Raises:
        OpsError: it is damaged, or was made for another environment or other hardware.
    """
    note = files.read_json(note_of(archive))
    if not isinstance(note, dict) or not archive.is_file():
        raise OpsError(
            f"compile_cache_restore is {archive}: the archive or its note {note_of(archive).name} is missing.",
            remedy="keep the two files of an archive together",
        )
    digest = files.file_sha256(archive)
    if digest != note.get("sha256"):
        raise OpsError(
            f"{archive} is damaged: its sha256 is {digest}, its note says {note.get('sha256')}.",
            remedy="fetch it again, or prewarm without it (relaunch.yml --tags warmup)",
        )
    for key, mine in (("env_id", where.env_id), ("hardware", where.hardware)):
        if note.get(key) != mine:
            raise OpsError(
                f"{archive} was made for {key} {note.get(key)!r}, and this box has {mine!r}.",
                remedy="restore it where both are equal; here a prewarm is needed",
            )
    return note


def unpack(layout: Layout, archive: Path, where: Place) -> None:
    """Put the archive's files in the cache's place, whole or not at all; the cache still has to be proved here."""
    note = check(archive, where)
    folder = layout.cache(where.cache_id)
    aside = layout.caches / f".{where.cache_id}.restore"
    shutil.rmtree(aside, ignore_errors=True)
    aside.mkdir(parents=True)
    _read(archive, aside)
    record = cache.read_record(aside)
    if not record or list(cache.damaged(aside, record["files"])):
        shutil.rmtree(aside)
        raise OpsError(f"{archive} unpacks to files that its record does not know.", remedy="fetch it again")
    # The proof belongs to the box that made it; here only the file list counts until a process of this box agrees.
    files.write_json(aside / cache.RECORD, {**record, "shapes": {}, "restored_from": note["archive"]})
    old = folder.with_name(f"{folder.name}.before-restore")
    shutil.rmtree(old, ignore_errors=True)
    if folder.is_dir():
        os.rename(folder, old)
    os.rename(aside, folder)
    shutil.rmtree(old, ignore_errors=True)


def _read(archive: Path, folder: Path) -> None:
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
