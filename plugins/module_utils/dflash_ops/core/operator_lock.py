"""One operator at a time per box. A dead or silent holder's lock is taken over.

The holder is a playbook on the controller, which the box cannot see in general: it renews its lease with every call.
When controller and box share one process table the holder's process is looked at too, so its death is known at once.
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
    """Who holds a box.

    Args:
        operator: login name on the controller.
        host: the controller's name.
        pid: the playbook's process there.
        start_ticks: its start time.
        machine: boot and process table that the pid belongs to.
        what: what it does, for the one who has to wait.
    """

    operator: str
    host: str
    pid: int
    start_ticks: int
    machine: str
    operation: str

    @property
    def token(self) -> str:
        """One name for one running playbook."""
        text = f"{self.machine} {self.pid} {self.start_ticks}"
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    def as_dict(self) -> dict[str, Any]:
        return {**dataclasses.asdict(self), "token": self.token}


def this_machine() -> str:
    """Name this boot and this PID namespace: pids compare only within one."""
    try:
        space = os.readlink("/proc/self/ns/pid")
    except OSError:
        space = ""
    return f"{processes.boot_id()} {space}"


def holder_of(pid: int, *, operation: str) -> Holder:
    """Describe the playbook process `pid` of this machine as a holder."""
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
    """Rebuild a holder from its dict; other keys are left alone."""
    return Holder(**{field.name: value[field.name] for field in dataclasses.fields(Holder)})


def is_dead_locally(held: dict[str, Any]) -> bool:
    """Tell whether the holder was a process of this machine and is gone."""
    if held.get("machine") != this_machine():
        return False
    return not processes.alive(processes.Process(pid=held["pid"], start_ticks=held["start_ticks"]))


def read(layout: Layout) -> dict[str, Any] | None:
    """Return the lock as written, also when it is stale; None when nobody holds the box."""
    value = files.read_json(layout.operator_lock)
    return value if isinstance(value, dict) and "token" in value else None


@contextlib.contextmanager
def _file_lock(layout: Layout) -> Iterator[None]:
    """Let one process at a time look at the lock and change it."""
    layout.root.mkdir(parents=True, exist_ok=True)
    handle = os.open(layout.root / ".operator.guard", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


def held_error(held: dict[str, Any], path: Path, *, now: float) -> OpsError:
    """Say who holds the box, since when and for what."""
    since = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(held["since"]))
    minutes = (now - held["since"]) / 60
    return OpsError(
        f"This box is held by {held['operator']} on {held['host']} (pid {held['pid']}) since {since} "
        f"({minutes:.0f} min) for: {held['operation'] or 'a playbook'}.",
        remedy=f"wait for it; if it is gone, its hold ends in {max(0.0, held['expires_at'] - now):.0f} s ({path})",
        facts={"held_by": held},
    )


def require_free(
    layout: Layout, holder: Holder, *, dead_token: str = "", now: float | None = None
) -> dict[str, Any] | None:
    """Return the stale lock of another holder, if there is one; changes nothing.

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
    """Take or renew the box for `holder`.

    Args:
        layout: the box.
        holder: who asks.
        lease: seconds until the lock ends unless renewed.
        dead_token: token of a holder that the caller has seen dead on its own machine.
        now: seconds since the epoch; for tests.

    Returns:
        The lock as written, with `taken_over` naming a stale holder that was put aside.

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
    """Lengthen the lease when `token` still holds the box; tell whether it does."""
    with _file_lock(layout):
        held = read(layout)
        if not held or held["token"] != token:
            return False
        files.write_json(layout.operator_lock, {**held, "expires_at": time.time() + lease})
    return True


def release(layout: Layout, token: str) -> bool:
    """Give the box back when `token` holds it; tell whether it did."""
    if not layout.root.is_dir():
        return False
    with _file_lock(layout):
        held = read(layout)
        if not held or held["token"] != token:
            return False
        layout.operator_lock.unlink(missing_ok=True)
    return True
