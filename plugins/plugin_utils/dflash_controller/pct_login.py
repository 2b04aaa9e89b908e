"""One login for all tasks that reach a host at the same moment.

A Proxmox host with several containers is several hosts of the inventory, and sshd drops logins that come ten at once
(MaxStartups). Whoever finds no shared login makes one; the others wait for it a moment, and then use it.
"""
from __future__ import annotations

import contextlib
import fcntl
import time
from collections.abc import Iterator
from pathlib import Path
from typing import IO

PATIENCE_S = 5.0  # a host that is down must not be waited for by one task after the other


@contextlib.contextmanager
def first_login(shared: Path | None) -> Iterator[None]:
    """Let one task at a time start ssh while the socket of the shared login is absent; None shares nothing."""
    if shared is None or shared.exists():
        yield
        return
    turn = shared.with_name(f"{shared.name}.first")
    with turn.open("w") as stream:
        wait_for_turn(stream, shared)
        try:
            yield
        finally:
            turn.unlink(missing_ok=True)


def wait_for_turn(stream: IO[str], shared: Path) -> None:
    """Return with the lock held, or without it once the login is there or has taken too long."""
    end = time.monotonic() + PATIENCE_S
    while not shared.exists() and time.monotonic() < end:
        try:
            fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            time.sleep(0.02)
        else:
            return
