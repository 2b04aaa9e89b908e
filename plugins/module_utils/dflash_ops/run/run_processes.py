"""Which processes belong to a run, found in /proc alone: by pid and start time, and by the run's mark."""

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
    """Return the trainer's process while it lives: the one recorded at launch, else the one start_training.sh named."""
    recorded = run.read("process.json")
    if recorded.get("boot_id") == processes.boot_id() and recorded.get("pid"):
        process = Process(pid=int(recorded["pid"]), start_ticks=int(recorded["start_ticks"]))
        return process if processes.alive(process) else None
    return named_process(run)


def named_process(run: runs.Run) -> Process | None:
    """Return the process of the `pid` file when it really carries the run's mark."""
    text = files.read_tail(run.folder / "pid", 64).strip()
    if not text.isdigit() or processes.run_folder_of(int(text)) != run.folder.resolve():
        return None
    return processes.find(int(text))


def of_run(run: runs.Run) -> list[Process]:
    """Return every process of a run: the trainer and all that carry its mark, wherever they went."""
    folder, main = run.folder.resolve(), main_process(run)
    looked = (processes.find(pid) for pid in processes.all_pids() if processes.run_folder_of(pid) == folder)
    found = [process for process in looked if process is not None]
    return found if main is None or main in found else [main, *found]


def all_living(layout: Layout) -> dict[str, list[Process]]:
    """Return the processes of every run of this box that still has some."""
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
    """Return the TCP ports on which these processes listen."""
    inodes = {inode for pid in pids for inode in _socket_inodes(pid)}
    return sorted({port for port, inode in _listeners() if inode in inodes})


def open_ports() -> set[int]:
    """Return every TCP port of this network namespace on which anything listens."""
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
    """Return the argv of a process; empty when it is gone."""
    try:
        raw = (processes.PROC / str(pid) / "cmdline").read_bytes()
    except OSError:
        return []
    return raw.decode(errors="replace").rstrip("\0").split("\0") if raw else []


def mapped_files(pid: int) -> list[str]:
    """Return the files a process has mapped: the libraries it really uses."""
    try:
        text = (processes.PROC / str(pid) / "maps").read_text(errors="replace")
    except OSError:
        return []
    return sorted({line.split(None, 5)[5] for line in text.splitlines() if len(line.split(None, 5)) == 6})


def torch_libraries(pid: int) -> list[str]:
    """Return torch's own libraries among the files a process has mapped; others lie below a folder named torch too."""
    return [path for path in mapped_files(pid) if TORCH_LIBRARY.search(path)]


def executable(pid: int) -> str:
    """Return the file a process runs; empty when it may not be read."""
    try:
        return os.readlink(processes.PROC / str(pid) / "exe")
    except OSError:
        return ""


def cgroup_oom_kills() -> int | None:
    """Return how often the OOM killer struck in this memory cgroup; None when that is not known."""
    place = next(
        (line.rpartition(":")[2] for line in _lines(processes.PROC / "self/cgroup") if line.startswith("0::")), ""
    )
    for folder in (Path("/sys/fs/cgroup") / place.lstrip("/"), Path("/sys/fs/cgroup")):
        for line in _lines(folder / "memory.events"):
            name, _, count = line.partition(" ")
            if name == "oom_kill" and count.isdigit():
                return int(count)
    return None
