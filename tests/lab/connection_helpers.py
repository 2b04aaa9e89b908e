"""Helpers of the tests of the connection plugin."""

from __future__ import annotations

import hashlib
import time
from pathlib import Path
from typing import Any

from dflash_lab.lab import Lab

METHODS = ("pct", "lxc-attach")


def wait_until(condition: Any, seconds: float = 20) -> None:
    """Wait until a condition is true."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "the condition did not become true"
        time.sleep(0.05)


def sockets(folder: Path) -> list[Path]:
    """Return the sockets of open connections."""
    return list(folder.glob("pct-*"))


def checksum(path: Path) -> str:
    """Return the SHA-256 of a file."""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def temporary_files(lab: Lab) -> list[str]:
    """Return the temporary files in /root of container 200."""
    return [name for name in lab.inside(200, "ls", "-A", "/root").stdout.split() if ".pct-part-" in name]
