"""Messages that a playbook prints when it ends, also after Ctrl-C.

Ansible runs tasks in forks of the playbook's process. Ctrl-C ends a fork, and nothing that it prints from then on is
shown. Forks therefore write their messages to files in a shared folder, and the playbook's process prints them at exit.
"""

from __future__ import annotations

import contextlib
import os
import signal
import urllib.parse
from collections.abc import Iterator
from pathlib import Path

PREFIX = "exit-message-"


@contextlib.contextmanager
def while_inside(folder: Path, text: str) -> Iterator[None]:
    """Keep a message for the case that this process is ended inside the block."""
    note = folder / f"{PREFIX}{os.getpid()}"
    note.write_text(text, encoding="utf-8")
    try:
        yield
    finally:
        note.unlink(missing_ok=True)


@contextlib.contextmanager
def signals_blocked() -> Iterator[None]:
    """Delay Ctrl-C and SIGTERM until the end of the block.

    A fork that dies while it sends a line keeps the lock of the queue to the playbook, which then never ends.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGINT, signal.SIGTERM))
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def set_for_box(folder: Path, box: str, text: str) -> None:
    """Set the message about a box; it stays over all following tasks until it is cleared."""
    _box_note(folder, box).write_text(text, encoding="utf-8")


def clear_for_box(folder: Path, box: str) -> None:
    """Remove the message about a box."""
    _box_note(folder, box).unlink(missing_ok=True)


def _box_note(folder: Path, box: str) -> Path:
    return folder / f"{PREFIX}box-{urllib.parse.quote(box, safe='')}"


def pending(folder: Path) -> list[str]:
    """Return the messages to print at exit."""
    return [note.read_text(encoding="utf-8") for note in sorted(folder.glob(f"{PREFIX}*"))]
