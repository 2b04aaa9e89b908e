"""What goes on on a box after its playbook is interrupted: noted by who follows it, told by who can still speak.

Ansible follows a box in a fork of the playbook's process. Ctrl-C ends that fork, and nothing that it says then is
shown. The playbook's own process lives on to its exit and reads what its forks noted in a folder that they share.
"""
from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

NAME = "going-on-"


@contextlib.contextmanager
def noted(folder: Path, text: str) -> Iterator[None]:
    """Keep a line for the case that this process is ended before the work inside."""
    note = folder / f"{NAME}{os.getpid()}"
    note.write_text(text, encoding="utf-8")
    try:
        yield
    finally:
        note.unlink(missing_ok=True)


def left(folder: Path) -> list[str]:
    """Return the lines of those that were ended, in no order that means anything."""
    return [note.read_text(encoding="utf-8") for note in sorted(folder.glob(f"{NAME}*"))]
