"""Processes, identified by pid and start time or by a variable in their environment, never by a name pattern."""
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
    """Process identity that is safe against pid reuse.

    Args:
        pid: process id in this PID namespace.
        start_ticks: start time in clock ticks after boot (field 22 of /proc/PID/stat).
    """

    pid: int
    start_ticks: int

    def as_dict(self) -> dict[str, int]:
        """Return the fields."""
        return {"pid": self.pid, "start_ticks": self.start_ticks}


def boot_id() -> str:
    """Return an id of this boot of the box, because start ticks cannot be compared across boots.

    The id includes the start time of process 1: a restarted container keeps the boot id of the host's kernel.
    """
    try:
        kernel = (PROC / "sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        kernel = ""
    init = find(1)
    return f"{kernel}/{init.start_ticks}" if init else kernel


def stat_fields(pid: int) -> list[str] | None:
    """Return the fields of /proc/PID/stat, starting with the state (index 0); None when the process does not exist."""
    try:
        text = (PROC / str(pid) / "stat").read_text(errors="replace")
    except OSError:
        return None
    return text.rpartition(")")[2].split()


def find(pid: int) -> Process | None:
    """Return the running process `pid`; None when it does not exist or is a zombie."""
    fields = stat_fields(pid)
    if fields is None or fields[0] in "ZX":
        return None
    return Process(pid=pid, start_ticks=int(fields[19]))


def alive(process: Process) -> bool:
    """Return whether this process, not another one with its pid, is still running."""
    return find(process.pid) == process


def environment_of(pid: int) -> dict[str, str]:
    """Return the environment a process was started with; empty when it is not readable."""
    try:
        raw = (PROC / str(pid) / "environ").read_bytes()
    except OSError:
        return {}
    pairs = (item.partition("=") for item in raw.decode(errors="surrogateescape").split("\0") if "=" in item)
    return {name: value for name, _, value in pairs}


def all_pids() -> list[int]:
    """Return the pids of all processes, sorted."""
    return sorted(int(name) for name in os.listdir(PROC) if name.isdigit())


def find_marked(value: str, *, mark: str) -> list[Process]:
    """Return every running process with `mark`=`value` in its environment, even outside the original session."""
    found = (find(pid) for pid in all_pids() if environment_of(pid).get(mark) == value)
    return [process for process in found if process is not None]


def pid_namespace(pid: int | str = "self") -> str:
    """Return the id of a process's PID namespace; empty when it is not readable."""
    try:
        return os.readlink(PROC / str(pid) / "ns/pid")
    except OSError:
        return ""


def run_folder_of(pid: int) -> Path | None:
    """Return the folder of the run that a process belongs to; None when it does not belong to a run on this box.

    The run id alone is ambiguous: another root can have a run with the same id, and a host sees the processes of its
    containers under the same path. Therefore the folder and the PID namespace are compared too.
    """
    values = environment_of(pid)
    run_id, folder = values.get(RUN_MARK), values.get(RUN_FOLDER)
    if not run_id or not folder or Path(folder).name != run_id or pid_namespace(pid) != pid_namespace():
        return None
    return Path(os.path.realpath(folder))


def send_signal(processes: Iterable[Process], number: signal.Signals) -> list[Process]:
    """Signal each process that is still running; return the signalled ones."""
    signalled = []
    for process in processes:
        if alive(process):
            try:
                os.kill(process.pid, number)
                signalled.append(process)
            except ProcessLookupError:
                continue
    return signalled


def wait_for_exit(processes: Iterable[Process], seconds: float, *, pause: float = 0.1) -> list[Process]:
    """Wait at most `seconds` for all processes to exit; return those that are still running."""
    deadline = time.monotonic() + seconds
    remaining = [process for process in processes if alive(process)]
    while remaining and time.monotonic() < deadline:
        time.sleep(pause)
        remaining = [process for process in remaining if alive(process)]
    return remaining
