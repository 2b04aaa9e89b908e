"""One ssh login for all tasks that connect to a host at the same time.

Several containers on one Proxmox host are several inventory hosts with the same login, and sshd drops logins when too
many arrive at once (MaxStartups). The first task logs in; the others wait briefly and then share that login.
"""

from __future__ import annotations

import contextlib
import fcntl
import time
from collections.abc import Iterator
from pathlib import Path
from typing import IO

MAX_WAIT_S = 5.0  # short: tasks must not wait one after the other for a host that is down


@contextlib.contextmanager
def serialized_login(control_path: Path | None) -> Iterator[None]:
    """Let one task at a time start ssh while the ControlMaster's socket is absent; None disables this."""
    if control_path is None or control_path.exists():
        yield
        return
    lock_file = control_path.with_name(f"{control_path.name}.first")
    with lock_file.open("w") as stream:
        wait_for_lock(stream, control_path)
        try:
            yield
        finally:
            lock_file.unlink(missing_ok=True)


def wait_for_lock(stream: IO[str], control_path: Path) -> None:
    """Return with the lock acquired, or without it once the login exists or the wait has taken too long."""
    end = time.monotonic() + MAX_WAIT_S
    while not control_path.exists() and time.monotonic() < end:
        try:
            fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            time.sleep(0.02)
        else:
            return
