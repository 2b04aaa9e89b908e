"""Size and hash of files, read from the disk."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path
from typing import TypedDict

_BLOCK = 1 << 22


class FileRecord(TypedDict):
    """Entry of one file in index.json."""

    size: int
    sha256: str


def record_of(file: Path) -> FileRecord:
    """Return size and SHA-256, read back from the disk where the page cache can be dropped first."""
    digest = hashlib.sha256()
    size = 0
    with file.open("rb") as handle:
        if hasattr(os, "posix_fadvise"):
            os.posix_fadvise(handle.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        while block := handle.read(_BLOCK):
            digest.update(block)
            size += len(block)
    return {"size": size, "sha256": digest.hexdigest()}
