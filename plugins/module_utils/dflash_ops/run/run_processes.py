"""Processes of a run, found in /proc: by pid and start time, and by the run's environment variable."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from pathlib import Path

from ..core import files, processes
from ..core.paths import Layout
from ..core.processes import Process
from . import runs

LISTEN = "0A"
TORCH_LIBRARY = re.compile(r"/torch/(lib/)?[^/]+\.so(\.[^/]*)?$")
SOCKET = re.compile(r"socket:\[(\d+)\]")


def main_process(run: runs.Run) -> Process | None:
    """Return the running trainer process: from process.json, else from the pid file of start_training.sh."""
    recorded = run.read("process.json")
    if recorded.get("boot_id") == processes.boot_id() and recorded.get("pid"):
        process = Process(pid=int(recorded["pid"]), start_ticks=int(recorded["start_ticks"]))
        return process if processes.alive(process) else None
    return process_from_pid_file(run)


def process_from_pid_file(run: runs.Run) -> Process | None:
    """Return the process of the `pid` file when its environment names this run."""
    text = files.read_tail(run.folder / "pid", 64).strip()
    if not text.isdigit() or processes.run_folder_of(int(text)) != run.folder.resolve():
        return None
    return processes.find(int(text))


def processes_of(run: runs.Run) -> list[Process]:
    """Return every process of a run: the trainer and all processes whose environment names the run."""
    folder, main = run.folder.resolve(), main_process(run)
    candidates = (processes.find(pid) for pid in processes.all_pids() if processes.run_folder_of(pid) == folder)
    found = [process for process in candidates if process is not None]
    return found if main is None or main in found else [main, *found]


def running_processes(layout: Layout) -> dict[str, list[Process]]:
    """Return the processes of each run of this box that has any, by run id."""
    found: dict[str, list[Process]] = {}
    for pid in processes.all_pids():
        folder = processes.run_folder_of(pid)
        if folder is None or folder != runs.folder_of(layout, folder.name).resolve():
            continue
        process = processes.find(pid)
        if process is not None and (folder / "run.json").is_file():
            found.setdefault(folder.name, []).append(process)
    current = runs.current(layout)
    if current is not None and current.run_id not in found and (main := main_process(current)):
        found[current.run_id] = [main]
    return found


def listening_ports(pids: Iterable[int]) -> list[int]:
    """Return the TCP ports that these processes listen on, sorted."""
    inodes = {inode for pid in pids for inode in _socket_inodes(pid)}
    return sorted({port for port, inode in _listeners() if inode in inodes})


def open_ports() -> set[int]:
    """Return every TCP port of this network namespace that has a listener."""
    return {port for port, _ in _listeners()}


def _socket_inodes(pid: int) -> list[str]:
    folder = processes.PROC / str(pid) / "fd"
    found = []
    try:
        for name in os.listdir(folder):
            match = SOCKET.fullmatch(os.readlink(folder / name))
            found += [match.group(1)] if match else []
    except OSError:
        return found
    return found


def _listeners() -> list[tuple[int, str]]:
    found = []
    for name in ("tcp", "tcp6"):
        for line in _lines(processes.PROC / "net" / name)[1:]:
            cells = line.split()
            if len(cells) > 9 and cells[3] == LISTEN:
                found.append((int(cells[1].rpartition(":")[2], 16), cells[9]))
    return found


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text().splitlines()
    except OSError:
        return []


def command_line(pid: int) -> list[str]:
    """Return the argv of a process; empty when the process has ended."""
    try:
        raw = (processes.PROC / str(pid) / "cmdline").read_bytes()
    except OSError:
        return []
    return raw.decode(errors="replace").rstrip("\0").split("\0") if raw else []


def mapped_files(pid: int) -> list[str]:
    """Return the files that a process has mapped, including the libraries in use."""
    try:
        text = (processes.PROC / str(pid) / "maps").read_text(errors="replace")
    except OSError:
        return []
    return sorted({line.split(None, 5)[5] for line in text.splitlines() if len(line.split(None, 5)) == 6})


def torch_libraries(pid: int) -> list[str]:
    """Return the mapped files of a process that are torch's own libraries, not others below a folder named torch."""
    return [path for path in mapped_files(pid) if TORCH_LIBRARY.search(path)]


def executable(pid: int) -> str:
    """Return the executable of a process; empty when it may not be read."""
    try:
        return os.readlink(processes.PROC / str(pid) / "exe")
    except OSError:
        return ""


def cgroup_oom_kills() -> int | None:
    """Return the number of OOM kills in this memory cgroup; None when unknown."""
    cgroup = next(
        (line.rpartition(":")[2] for line in _lines(processes.PROC / "self/cgroup") if line.startswith("0::")), ""
    )
    for folder in (Path("/sys/fs/cgroup") / cgroup.lstrip("/"), Path("/sys/fs/cgroup")):
        for line in _lines(folder / "memory.events"):
            name, _, count = line.partition(" ")
            if name == "oom_kill" and count.isdigit():
                return int(count)
    return None
