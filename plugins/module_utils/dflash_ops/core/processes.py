"""Processes known by pid and start time, and by a mark in their environment; never by a pattern."""
from __future__ import annotations

import dataclasses
import os
import signal
import time
from collections.abc import Iterable
from pathlib import Path

PROC = Path("/proc")
RUN_MARK = "DFLASH_RUN_ID"
RUN_FOLDER = "DFLASH_RUN_DIR"


@dataclasses.dataclass(frozen=True)
class Process:
    """One process, safe against pid reuse.

    Args:
        pid: process id in this PID namespace.
        start_ticks: clock ticks after boot when it started (field 22 of /proc/PID/stat).
    """

    pid: int
    start_ticks: int

    def as_dict(self) -> dict[str, int]:
        return {"pid": self.pid, "start_ticks": self.start_ticks}


def boot_id() -> str:
    """Name this boot of the box; start ticks mean nothing across two boots.

    The kernel's id alone would be the host's: a container that restarts gets a new process 1 only.
    """
    try:
        kernel = (PROC / "sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        kernel = ""
    first = find(1)
    return f"{kernel}/{first.start_ticks}" if first else kernel


def stat_fields(pid: int) -> list[str] | None:
    """Return the fields of /proc/PID/stat from the state on (index 0); None when there is no such process."""
    try:
        text = (PROC / str(pid) / "stat").read_text(errors="replace")
    except OSError:
        return None
    return text.rpartition(")")[2].split()


def find(pid: int) -> Process | None:
    """Return the live process `pid`; None when it is gone or only a zombie."""
    fields = stat_fields(pid)
    if fields is None or fields[0] in "ZX":
        return None
    return Process(pid=pid, start_ticks=int(fields[19]))


def alive(process: Process) -> bool:
    """Tell whether this very process (not another with its pid) still runs."""
    return find(process.pid) == process


def environment_of(pid: int) -> dict[str, str]:
    """Return the environment a process was started with; empty when it may not be read."""
    try:
        raw = (PROC / str(pid) / "environ").read_bytes()
    except OSError:
        return {}
    pairs = (item.partition("=") for item in raw.decode(errors="surrogateescape").split("\0") if "=" in item)
    return {name: value for name, _, value in pairs}


def all_pids() -> list[int]:
    return sorted(int(name) for name in os.listdir(PROC) if name.isdigit())


def find_marked(value: str, *, mark: str) -> list[Process]:
    """Return every live process whose environment carries `mark`=`value`, also those that left the session."""
    found = (find(pid) for pid in all_pids() if environment_of(pid).get(mark) == value)
    return [process for process in found if process is not None]


def pid_namespace(pid: int | str = "self") -> str:
    """Name the process table a process lives in; empty when it may not be read."""
    try:
        return os.readlink(PROC / str(pid) / "ns/pid")
    except OSError:
        return ""


def run_folder_of(pid: int) -> Path | None:
    """Return the folder of the run that a process belongs to, by its marks; None when it is of no run of this box.

    A run's id is a time and a label: another root has the same soon, and a container's processes are seen from its
    host under the same path. So the folder counts as well as the id, and the process table as well as the folder.
    """
    values = environment_of(pid)
    run_id, folder = values.get(RUN_MARK), values.get(RUN_FOLDER)
    if not run_id or not folder or Path(folder).name != run_id or pid_namespace(pid) != pid_namespace():
        return None
    return Path(os.path.realpath(folder))


def send_signal(processes: Iterable[Process], number: signal.Signals) -> list[Process]:
    """Signal each process that still is the one recorded; return those that were signalled."""
    reached = []
    for process in processes:
        if alive(process):
            try:
                os.kill(process.pid, number)
                reached.append(process)
            except ProcessLookupError:
                continue
    return reached


def seconds_since_start(process: Process) -> float:
    """Return the age of a process in seconds."""
    uptime = float((PROC / "uptime").read_text().split()[0])
    return uptime - process.start_ticks / os.sysconf("SC_CLK_TCK")


def wait_for_exit(processes: Iterable[Process], seconds: float, *, pause: float = 0.1) -> list[Process]:
    """Wait at most `seconds` for all to end; return those that still run."""
    deadline = time.monotonic() + seconds
    left = [process for process in processes if alive(process)]
    while left and time.monotonic() < deadline:
        time.sleep(pause)
        left = [process for process in left if alive(process)]
    return left
