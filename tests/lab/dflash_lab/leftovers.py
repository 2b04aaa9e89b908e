"""Processes that a lab left behind: found by what they see of its folder, since their parents may be dead."""
from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

from .layout import Layout
from .shell import LabError

PATIENCE_S = 5.0


def of_host(layout: Layout) -> list[int]:
    """Return the pids in the lab's mount namespace: its sshd, logins, and whatever those left in the background."""
    return [int(entry.name) for entry in processes() if f"upperdir={layout.host}/" in text(entry / "mountinfo")]


def of_build(layout: Layout) -> list[int]:
    """Return the pids that fill a root file system: debootstrap, and what it runs in there."""
    return [int(entry.name) for entry in processes() if builds(entry, f"{layout.state}/")]


def builds(entry: Path, state: str) -> bool:
    """Tell whether a process is debootstrap for a folder below `state`, or has its root there."""
    with contextlib.suppress(OSError):
        if str((entry / "root").readlink()).startswith(state):
            return True
    words = text(entry / "cmdline").split("\0")
    return any(word.startswith(state) for word in words) and any(word.endswith("/debootstrap") for word in words)


def processes() -> list[Path]:
    """Return /proc's folder of every process but this one."""
    return [entry for entry in Path("/proc").iterdir() if entry.name.isdigit() and entry.name != str(os.getpid())]


def text(path: Path) -> str:
    """Return what a file of /proc holds; empty when the process is gone."""
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def end(find: Callable[[Layout], list[int]], layout: Layout) -> None:
    """End the processes that `find` returns until there are none: asked first, killed then."""
    for kind in (signal.SIGTERM, signal.SIGKILL):
        until = time.monotonic() + PATIENCE_S
        while time.monotonic() < until:
            found = find(layout)
            if not found:
                return
            for pid in found:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, kind)
            time.sleep(0.05)
    raise LabError(f"processes of the lab do not end: {find(layout)}")
