"""Processes that a lab left behind, found by their mounts and root folder because their parents may be dead."""
from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

from .layout import Layout
from .shell import LabError

MAX_WAIT_S = 5.0


def of_host(layout: Layout) -> list[int]:
    """Return the pids in the lab's mount namespace: its sshd, logins, and background processes of logins."""
    return [int(entry.name) for entry in processes() if f"upperdir={layout.host}/" in text(entry / "mountinfo")]


def of_build(layout: Layout) -> list[int]:
    """Return the pids that build a root file system: debootstrap and its children."""
    return [int(entry.name) for entry in processes() if builds(entry, f"{layout.state}/")]


def builds(entry: Path, state: str) -> bool:
    """Return true when a process is debootstrap for a folder below `state`, or has its root there."""
    with contextlib.suppress(OSError):
        if str((entry / "root").readlink()).startswith(state):
            return True
    arguments = text(entry / "cmdline").split("\0")
    return any(a.startswith(state) for a in arguments) and any(a.endswith("/debootstrap") for a in arguments)


def processes() -> list[Path]:
    """Return the /proc folders of all other processes."""
    return [entry for entry in Path("/proc").iterdir() if entry.name.isdigit() and entry.name != str(os.getpid())]


def text(path: Path) -> str:
    """Return the content of a file in /proc; empty when the process is gone."""
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def end(find: Callable[[Layout], list[int]], layout: Layout) -> None:
    """End the processes that `find` returns, with SIGTERM and then SIGKILL, until there are none."""
    for signal_number in (signal.SIGTERM, signal.SIGKILL):
        until = time.monotonic() + MAX_WAIT_S
        while time.monotonic() < until:
            found = find(layout)
            if not found:
                return
            for pid in found:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal_number)
            time.sleep(0.05)
    raise LabError(f"processes of the lab do not end: {find(layout)}")
