"""Detached jobs, which keep running after the module call that started them.

A job is a folder `jobs/<job_id>/`: job.json (the runner's process), log (all output), lines (printed live to the
operator), progress.json (current state) and exit.json (written last). The runner has its own session and holds a lock
on `jobs/.<job_id>.lock` while it is running. A second caller therefore attaches instead of starting another runner, and
a killed runner is detected. Arguments are sent over a pipe, so that secrets in them are never written to disk.
"""
from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import hashlib
import importlib
import importlib.resources
import json
import os
import re
import secrets
import shutil
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import FrameType
from typing import Any

from . import disk, files, processes
from .errors import OpsError
from .paths import SYSTEM_PATH, Layout, home

PACKAGE = __package__.rpartition(".")[0]
JOB_MARK = "DFLASH_JOB"
STOP_PREFIX = "stop-"  # name of a job that stops a run
START_SECONDS = 30.0
POLL_SECONDS = 0.1
FINAL_LINES_SECONDS = 0.3
PROXY_NAMES = ("http_proxy", "https_proxy", "no_proxy", "all_proxy")
JOB_ID_RULE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
BOOTSTRAP = "import sys; sys.path.insert(0, sys.argv[1]); from dflash_ops.core.jobs import runner_main; runner_main()"


@dataclasses.dataclass(frozen=True)
class Snapshot:
    """State of a job at one moment.

    Args:
        job_id: name of the job.
        state: absent, running, done, failed (reported by the runner) or dead (the runner ended without a report).
        attached: the job was already running when the caller requested it.
        elapsed: seconds since it started.
        progress: the current {"line", "done", "total", "elapsed"}.
        lines: new lines since the caller's offset.
        offset: offset for the next `poll`.
        exit: {"ok", "result", "message", "remedy", "facts", "seconds", "finished_at"} after it ended.
        log: path of the log with all output.
        log_tail: end of the log if the job failed or is dead.
    """

    job_id: str
    state: str
    attached: bool = False
    elapsed: float = 0.0
    progress: dict[str, Any] = dataclasses.field(default_factory=dict)
    lines: list[str] = dataclasses.field(default_factory=list)
    offset: int = 0
    exit: dict[str, Any] = dataclasses.field(default_factory=dict)
    log: str = ""
    log_tail: str = ""

    def as_dict(self) -> dict[str, Any]:
        """Return the fields."""
        return dataclasses.asdict(self)


class Progress:
    """Progress reports of a job, written by its runner."""

    def __init__(self, folder: Path, *, min_interval: float = 0.5) -> None:
        self.folder = folder
        self.min_interval = min_interval
        self.started = time.monotonic()
        self.written = 0.0

    def elapsed(self) -> float:
        """Return the seconds since the start."""
        return time.monotonic() - self.started

    def say(self, line: str, *, done: int | None = None, total: int | None = None) -> None:
        """Print one line to the operator, log it, and make it the current state."""
        with (self.folder / "lines").open("a", encoding="utf-8") as stream:
            stream.write(line.replace("\n", " ") + "\n")
        print(f"[{self.elapsed():.1f} s] {line}", flush=True)
        self.show(line, done=done, total=total)

    def update(self, line: str, *, done: int | None = None, total: int | None = None) -> None:
        """Make this the current state, at most once every `min_interval` seconds, for frequent changes."""
        if time.monotonic() - self.written >= self.min_interval:
            self.show(line, done=done, total=total)

    def show(self, line: str, *, done: int | None = None, total: int | None = None) -> None:
        """Make this the current state, which is printed only when no new line follows for some seconds."""
        self.written = time.monotonic()
        state = {"line": line, "done": done, "total": total, "elapsed": round(self.elapsed(), 1),
                 "updated_at": time.time()}
        files.write_json(self.folder / "progress.json", state)


def plain_environment(extra: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return the explicit environment of a job: only the proxy variables and the home come from the caller."""
    kept = {name: value for name, value in os.environ.items() if name.lower() in PROXY_NAMES}
    base = {"PATH": SYSTEM_PATH, "HOME": home(), "LANG": "C.UTF-8", "PYTHONNOUSERSITE": "1"}
    return {**kept, **base, **(extra or {})}


def child_environment(extra: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return the environment for child processes of this job, with the mark by which a later run of it finds them."""
    mark = os.environ.get(JOB_MARK)
    return plain_environment({**({JOB_MARK: mark} if mark else {}), **(extra or {})})


def package_sources() -> dict[str, bytes]:
    """Return the source files of this package, from its folder or from the archive that Ansible sent."""
    return dict(_sources_below(importlib.resources.files(PACKAGE), ""))


def _sources_below(folder: Any, prefix: str) -> Iterator[tuple[str, bytes]]:
    for item in folder.iterdir():
        if item.is_dir():
            yield from _sources_below(item, f"{prefix}{item.name}/")
        elif item.name.endswith(".py"):
            yield prefix + item.name, item.read_bytes()


def install_package(layout: Layout) -> Path:
    """Copy this package to `ops/<hash>/dflash_ops`, because Ansible deletes the module's copy; return `ops/<hash>`."""
    sources = package_sources()
    digest = hashlib.sha256()
    for name in sorted(sources):
        digest.update(name.encode() + b"\0" + sources[name] + b"\0")
    target = layout.ops / digest.hexdigest()[:16]
    if (target / "dflash_ops").is_dir():
        return target
    staging = layout.ops / f".{target.name}.{os.getpid()}"
    shutil.rmtree(staging, ignore_errors=True)
    for name, data in sources.items():
        file = staging / "dflash_ops" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(data)
    try:
        os.rename(staging, target)
    except OSError:  # a concurrent call created an identical copy
        shutil.rmtree(staging, ignore_errors=True)
    return target


@contextlib.contextmanager
def try_lock(layout: Layout, job_id: str) -> Iterator[int | None]:
    """Yield a descriptor that holds the job's lock, or None when its runner or another caller has it."""
    layout.jobs.mkdir(parents=True, exist_ok=True)
    handle = os.open(layout.jobs / f".{job_id}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(handle)
        yield None
        return
    try:
        yield handle
    finally:
        os.close(handle)


def recorded_process(folder: Path) -> processes.Process | None:
    """Return the runner recorded in job.json; None when there is none or it ran before a reboot."""
    job = files.read_json(folder / "job.json")
    if not job or job.get("boot_id") != processes.boot_id():
        return None
    return processes.Process(pid=job["pid"], start_ticks=job["start_ticks"])


def state_of(folder: Path) -> str:
    """Return absent, running, done, failed or dead."""
    if not (folder / "job.json").exists():
        return "absent"
    process = recorded_process(folder)
    running = process is not None and processes.alive(process)
    ended = files.read_json(folder / "exit.json")  # read after the check, so that an end in between is noticed
    if ended:
        return "done" if ended.get("ok") else "failed"
    return "running" if running else "dead"


def read_lines(folder: Path, offset: int) -> tuple[list[str], int]:
    """Return the complete lines after byte `offset`, and the offset after them."""
    try:
        with (folder / "lines").open("rb") as stream:
            stream.seek(offset)
            data = stream.read()
    except OSError:
        return [], offset
    complete = data[: data.rfind(b"\n") + 1]
    return complete.decode(errors="replace").splitlines(), offset + len(complete)


def snapshot(layout: Layout, job_id: str, *, offset: int = 0, attached: bool = False) -> Snapshot:
    """Return the current state of a job."""
    folder = layout.job(job_id)
    state = state_of(folder)
    lines, after = read_lines(folder, offset)
    job = files.read_json(folder / "job.json") or {}
    ended = files.read_json(folder / "exit.json") or {}
    elapsed = ended.get("seconds") or max(0.0, time.time() - job.get("started_at", time.time()))
    tail = files.read_tail(folder / "log", 4000) if state in ("failed", "dead") else ""
    return Snapshot(job_id=job_id, state=state, attached=attached, elapsed=round(elapsed, 1),
                    progress=files.read_json(folder / "progress.json") or {}, lines=lines, offset=after,
                    exit=ended, log=str(folder / "log"), log_tail=tail)


def poll(layout: Layout, job_id: str, *, offset: int = 0, wait: float = 0.0) -> Snapshot:
    """Return a snapshot, after waiting up to `wait` seconds for a new line or the end of the job.

    A new line may be the last one, so the job gets a moment to end, which saves the caller another call.
    """
    has_lines, deadline = False, time.monotonic() + wait
    while True:
        now = snapshot(layout, job_id, offset=offset)
        if now.lines and not has_lines:
            has_lines, deadline = True, min(deadline, time.monotonic() + FINAL_LINES_SECONDS)
        if now.state != "running" or time.monotonic() >= deadline:
            return now
        time.sleep(POLL_SECONDS)


def job_mark(layout: Layout, job_id: str) -> str:
    """Return the mark of this job, which includes the root and the PID namespace to be unique."""
    return f"{processes.pid_namespace()} {layout.job(job_id)}"


def terminate_leftovers(layout: Layout, job_id: str) -> None:
    """Terminate processes left by a killed runner, which would keep writing to the folder of the next run.

    Raises:
        OpsError: a process does not exit.
    """
    marked = processes.find_marked(job_mark(layout, job_id), mark=JOB_MARK)
    leftovers = [process for process in marked if process.pid != os.getpid()]
    processes.send_signal(leftovers, signal.SIGTERM)
    leftovers = processes.wait_for_exit(leftovers, 5.0)
    processes.send_signal(leftovers, signal.SIGKILL)
    if processes.wait_for_exit(leftovers, 10.0):
        pids = ", ".join(str(process.pid) for process in leftovers)
        raise OpsError(f"Processes of an earlier job {job_id} do not exit: {pids}.",
                       remedy="inspect them with ps; they wait for a disk")


def start_or_attach(layout: Layout, job_id: str, entry: str, arguments: Mapping[str, Any], *, title: str = "",
                    environment: Mapping[str, str] | None = None) -> Snapshot:
    """Start a job, or attach to it when it is already running.

    Args:
        layout: the box.
        job_id: name of the job; the same work must always have the same name.
        entry: `module:function` in this package; called as function(arguments, progress), returns a JSON object.
        arguments: JSON arguments of the function; may contain secrets.
        title: description of the job for people.
        environment: additional variables of the runner.

    Raises:
        OpsError: the name is invalid, the runner does not start, or another process holds the job's lock.
    """
    if not JOB_ID_RULE.fullmatch(job_id):
        raise OpsError(f"Job name {job_id!r} has characters that are not allowed in a folder name.")
    folder = layout.job(job_id)
    deadline = time.monotonic() + START_SECONDS
    while True:
        with try_lock(layout, job_id) as lock:
            if lock is not None:
                return _start(layout, job_id, lock, environment=environment,
                              message={"entry": entry, "title": title, "arguments": _absolute(layout, arguments)})
        state = state_of(folder)
        if state == "running":
            return snapshot(layout, job_id, attached=True)
        if state == "dead":
            terminate_leftovers(layout, job_id)
        if time.monotonic() > deadline:
            raise OpsError(f"The lock of job {job_id} is held by a process that is not its runner.",
                           remedy=f"find the process with fuser {layout.jobs / f'.{job_id}.lock'} and terminate it")
        time.sleep(0.1)


def _absolute(layout: Layout, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments with absolute folders, because the job may expand ~ to another home than the caller."""
    folders = {"root": str(layout.root), "workspace": str(layout.workspace)}
    return {**arguments, **{name: folder for name, folder in folders.items() if name in arguments}}


def _start(layout: Layout, job_id: str, lock: int, *, message: dict[str, Any],
           environment: Mapping[str, str] | None) -> Snapshot:
    """Start the runner, which inherits the lock, and wait until it has written job.json."""
    terminate_leftovers(layout, job_id)
    folder = layout.job(job_id)
    previous = layout.job(f"{job_id}.previous")
    if folder.exists():
        shutil.rmtree(previous, ignore_errors=True)
        os.rename(folder, previous)
    folder.mkdir(parents=True)
    token = secrets.token_hex(8)
    argv = [sys.executable, "-I", "-B", "-c", BOOTSTRAP, str(install_package(layout)), str(folder), str(lock)]
    with (folder / "log").open("ab") as log:
        marked = {**(environment or {}), JOB_MARK: job_mark(layout, job_id)}
        child = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=log, stderr=log, cwd="/", start_new_session=True,
                                 pass_fds=(lock,), env=plain_environment(marked))
    assert child.stdin is not None
    with contextlib.suppress(BrokenPipeError), child.stdin:
        child.stdin.write(json.dumps({**message, "job_id": job_id, "token": token}).encode())
    deadline = time.monotonic() + START_SECONDS
    while (files.read_json(folder / "job.json") or {}).get("token") != token:
        if child.poll() is not None or time.monotonic() > deadline:
            output = files.read_tail(folder / "log", 2000).strip() or "no output"
            raise OpsError(f"Job {job_id} did not start: {output}",
                           remedy=f"see {folder / 'log'}")
        time.sleep(0.02)
    return snapshot(layout, job_id)


def stop_job(layout: Layout, job_id: str, *, seconds: float = 10.0) -> bool:
    """Terminate a running job and its children; return whether it was running."""
    process = recorded_process(layout.job(job_id))
    if process is None or not processes.alive(process):
        return False
    processes.send_signal([process], signal.SIGTERM)
    if processes.wait_for_exit([process], seconds):
        processes.send_signal([process], signal.SIGKILL)
        processes.wait_for_exit([process], seconds)
    terminate_leftovers(layout, job_id)
    return True


def runner_main() -> None:
    """Run a job in the runner process: read the message, write job.json, call the function, write exit.json."""
    folder, lock = Path(sys.argv[2]), int(sys.argv[3])
    os.set_inheritable(lock, False)
    message = json.loads(sys.stdin.buffer.read())
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, _on_term)
    this_process = processes.find(os.getpid())
    assert this_process is not None
    request = {name: message[name] for name in ("job_id", "entry", "title", "token")}
    runner = {**this_process.as_dict(), "boot_id": processes.boot_id(), "started_at": time.time()}
    files.write_json(folder / "job.json", {**request, **runner, "python": sys.executable})
    progress = Progress(folder)
    ended = _run_entry(message, progress)
    ended.update(seconds=round(progress.elapsed(), 2), finished_at=time.time())
    files.write_json(folder / "exit.json", ended)
    sys.exit(0 if ended["ok"] else 1)


class Stopped(BaseException):
    """SIGTERM was received. It is not an Exception, so code that retries after errors does not catch it."""


def _on_term(_number: int, _frame: FrameType | None) -> None:
    raise Stopped


def _run_entry(message: dict[str, Any], progress: Progress) -> dict[str, Any]:
    module_name, _, function_name = message["entry"].partition(":")
    try:
        function = getattr(importlib.import_module(f"{PACKAGE}.{module_name}"), function_name)
        return {"ok": True, "result": function(message["arguments"], progress)}
    except Stopped:
        return {"ok": False, "message": "The job was asked to stop (SIGTERM).",
                "remedy": "run the playbook again to restart the job", "facts": {}}
    except OpsError as error:
        print(str(error), flush=True)
        return {"ok": False, "message": error.message, "remedy": error.remedy, "facts": error.facts}
    except Exception as error:
        print(traceback.format_exc(), flush=True)
        layout = _layout_of(message["arguments"])
        explained = disk.explain_os_error(error, layout) if isinstance(error, OSError) else None
        if explained is not None:
            return {"ok": False, "message": explained.message, "remedy": explained.remedy, "facts": {}}
        return {"ok": False, "message": f"{type(error).__name__}: {error}", "remedy": f"see {progress.folder / 'log'}",
                "facts": {}}


def _layout_of(arguments: Mapping[str, Any]) -> Layout:
    return Layout.of(arguments.get("root") or "/", arguments.get("workspace"))
