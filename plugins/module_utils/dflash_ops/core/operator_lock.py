"""Operator lock: one operator at a time per box. The lock of a dead holder or an expired lease is taken over.

The holder is a playbook on the controller, which the box usually cannot see, so each call renews its lease. When
controller and box share one process table, the holder's process is checked too and its death is noticed at once.
"""

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import getpass
import hashlib
import os
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from . import files, processes
from .errors import OpsError
from .paths import Layout

LEASE_SECONDS = 600.0


@dataclasses.dataclass(frozen=True)
class Holder:
    """Holder of an operator lock.

    Args:
        operator: login name on the controller.
        host: name of the controller.
        pid: the playbook's process on the controller.
        start_ticks: start time of that process.
        machine: boot and process table of the pid.
        operation: name of the playbook, shown to the operator who has to wait.
    """

    operator: str
    host: str
    pid: int
    start_ticks: int
    machine: str
    operation: str

    @property
    def token(self) -> str:
        """Return the id of the running playbook."""
        text = f"{self.machine} {self.pid} {self.start_ticks}"
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    def as_dict(self) -> dict[str, Any]:
        """Return the fields and the token."""
        return {**dataclasses.asdict(self), "token": self.token}


def this_machine() -> str:
    """Return an id of this boot and PID namespace, within which pids can be compared."""
    try:
        namespace = os.readlink("/proc/self/ns/pid")
    except OSError:
        namespace = ""
    return f"{processes.boot_id()} {namespace}"


def holder_of(pid: int, *, operation: str) -> Holder:
    """Return the holder for the playbook process `pid` on this machine."""
    process = processes.find(pid)
    return Holder(
        operator=getpass.getuser(),
        host=socket.gethostname(),
        pid=pid,
        start_ticks=process.start_ticks if process else 0,
        machine=this_machine(),
        operation=operation,
    )


def holder_from(value: dict[str, Any]) -> Holder:
    """Return the holder in a dict; other keys are ignored."""
    return Holder(**{field.name: value[field.name] for field in dataclasses.fields(Holder)})


def is_dead_locally(held: dict[str, Any]) -> bool:
    """Return whether the holder was a process on this machine and has exited."""
    if held.get("machine") != this_machine():
        return False
    return not processes.alive(processes.Process(pid=held["pid"], start_ticks=held["start_ticks"]))


def read(layout: Layout) -> dict[str, Any] | None:
    """Return the lock as written, even if it is stale; None when it is free."""
    value = files.read_json(layout.operator_lock)
    return value if isinstance(value, dict) and "token" in value else None


@contextlib.contextmanager
def _file_lock(layout: Layout) -> Iterator[None]:
    """Hold the mutex for reading and changing the lock file."""
    layout.root.mkdir(parents=True, exist_ok=True)
    handle = os.open(layout.root / ".operator.guard", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


def held_error(held: dict[str, Any], path: Path, *, now: float) -> OpsError:
    """Return the error that names the holder, the time of acquisition and the operation."""
    since = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(held["since"]))
    minutes = (now - held["since"]) / 60
    return OpsError(
        f"The operator lock of this box is held by {held['operator']} on {held['host']} (pid {held['pid']}) "
        f"since {since} ({minutes:.0f} min) for: {held['operation'] or 'a playbook'}.",
        remedy=f"wait for it; if it is dead, its lease expires in {max(0.0, held['expires_at'] - now):.0f} s ({path})",
        facts={"held_by": held},
    )


def require_free(
    layout: Layout, holder: Holder, *, dead_token: str = "", now: float | None = None
) -> dict[str, Any] | None:
    """Require that no other live holder has the lock, without changing it.

    Returns:
        The stale lock of another holder, if there is one.

    Raises:
        OpsError: another holder is alive.
    """
    moment = time.time() if now is None else now
    held = read(layout)
    other = held if held and held["token"] != holder.token else None
    if other and not (other["expires_at"] <= moment or other["token"] == dead_token or is_dead_locally(other)):
        raise held_error(other, layout.operator_lock, now=moment)
    return other


def acquire(
    layout: Layout, holder: Holder, *, lease: float = LEASE_SECONDS, dead_token: str = "", now: float | None = None
) -> dict[str, Any]:
    """Acquire or renew the lock for `holder`.

    Args:
        layout: the box.
        holder: the new holder.
        lease: seconds until the lock expires unless it is renewed.
        dead_token: token of a holder that the caller knows to be dead on its own machine.
        now: seconds since the epoch; for tests.

    Returns:
        The lock as written, with `taken_over` naming a stale holder that was replaced.

    Raises:
        OpsError: another holder is alive.
    """
    moment = time.time() if now is None else now
    with _file_lock(layout):
        held = read(layout)
        other = require_free(layout, holder, dead_token=dead_token, now=moment)
        since = held["since"] if held and not other else moment
        lock = {**holder.as_dict(), "since": since, "expires_at": moment + lease}
        files.write_json(layout.operator_lock, lock)
    return {**lock, "taken_over": f"{other['operator']} on {other['host']}" if other else ""}


def renew(layout: Layout, token: str, *, lease: float = LEASE_SECONDS) -> bool:
    """Renew the lease if `token` holds the lock; return whether it does."""
    with _file_lock(layout):
        held = read(layout)
        if not held or held["token"] != token:
            return False
        files.write_json(layout.operator_lock, {**held, "expires_at": time.time() + lease})
    return True


def release(layout: Layout, token: str) -> bool:
    """Release the lock if `token` holds it; return whether it did."""
    if not layout.root.is_dir():
        return False
    with _file_lock(layout):
        held = read(layout)
        if not held or held["token"] != token:
            return False
        layout.operator_lock.unlink(missing_ok=True)
    return True
