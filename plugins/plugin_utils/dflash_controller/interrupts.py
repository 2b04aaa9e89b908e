"""What goes on on a box after its playbook is interrupted: noted by who follows it, told by who can still speak.

Ansible follows a box in a fork of the playbook's process. Ctrl-C ends that fork, and nothing that it says then is
shown. The playbook's own process lives on to its exit and reads what its forks noted in a folder that they share.
"""
from __future__ import annotations

import contextlib
import os
import signal
import urllib.parse
from collections.abc import Iterator
from pathlib import Path

NAME = "going-on-"


@contextlib.contextmanager
def note_while_running(folder: Path, text: str) -> Iterator[None]:
    """Keep a line for the case that this process is ended before the work inside."""
    note = folder / f"{NAME}{os.getpid()}"
    note.write_text(text, encoding="utf-8")
    try:
        yield
    finally:
        note.unlink(missing_ok=True)


@contextlib.contextmanager
def deferred_signals() -> Iterator[None]:
    """Let Ctrl-C wait for what is inside.

    A fork that dies while it sends a line holds the lock of the queue to the playbook, which then never ends.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGINT, signal.SIGTERM))
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def keep_note(folder: Path, box: str, text: str) -> None:
    """Keep a line about a box until it is dropped, over all the tasks in between, however they end."""
    _of_box(folder, box).write_text(text, encoding="utf-8")


def drop_note(folder: Path, box: str) -> None:
    """Forget the line about a box: it holds no longer."""
    _of_box(folder, box).unlink(missing_ok=True)


def _of_box(folder: Path, box: str) -> Path:
    return folder / f"{NAME}on-{urllib.parse.quote(box, safe='')}"


def remaining_notes(folder: Path) -> list[str]:
    """Return the lines of those that were ended, and of the boxes that still have one."""
    return [note.read_text(encoding="utf-8") for note in sorted(folder.glob(f"{NAME}*"))]
