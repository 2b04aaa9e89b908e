"""Long tasks that outlive the module call that started them.

A job is a folder `jobs/<job_id>/`: job.json (who runs), log (all output), lines (what an operator sees live),
progress.json (the newest state) and exit.json (written last). Its runner is a process of its own session which holds
a lock on `jobs/.<job_id>.lock` for as long as it lives, so a second caller attaches instead of starting another, and a
runner that was killed is known to be dead. Arguments travel over a pipe: what is secret in them is never on disk.
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
STOP_PREFIX = "stop-"  # what the job that stops a run is named
START_SECONDS = 30.0
POLL_SECONDS = 0.1
FINAL_LINES_SECONDS = 0.3
PROXY_NAMES = ("http_proxy", "https_proxy", "no_proxy", "all_proxy")
JOB_ID_RULE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
BOOTSTRAP = "import sys; sys.path.insert(0, sys.argv[1]); from dflash_ops.core.jobs import runner_main; runner_main()"


@dataclasses.dataclass(frozen=True)
class Snapshot:
    """What is known of a job at one moment.

    Args:
        job_id: its name.
        state: absent, running, done, failed (it said so) or dead (its runner is gone without a word).
        attached: the job was already running when the caller asked for it.
        elapsed: seconds since it started.
        progress: the newest {"line", "done", "total", "elapsed"}.
        lines: what was said since the caller's offset.
        offset: where the next `poll` goes on reading.
        exit: {"ok", "result", "message", "remedy", "facts", "seconds", "finished_at"} once it ended.
        log: path of the whole output.
        log_tail: its end, when the job failed or died.
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
        return dataclasses.asdict(self)


class Progress:
    """How a job tells what it does. Owner: the runner."""

    def __init__(self, folder: Path, *, least_pause: float = 0.5) -> None:
        self.folder = folder
        self.least_pause = least_pause
        self.started = time.monotonic()
        self.written = 0.0

    def elapsed(self) -> float:
        return time.monotonic() - self.started

    def say(self, line: str, *, done: int | None = None, total: int | None = None) -> None:
        """Show one line to the operator, keep it in the log, and make it the newest state."""
        with (self.folder / "lines").open("a", encoding="utf-8") as stream:
            stream.write(line.replace("\n", " ") + "\n")
        print(f"[{self.elapsed():.1f} s] {line}", flush=True)
        self.show(line, done=done, total=total)

    def update(self, line: str, *, done: int | None = None, total: int | None = None) -> None:
        """Make this the newest state, at most once per `least_pause` seconds: for things that move all the time."""
        if time.monotonic() - self.written >= self.least_pause:
            self.show(line, done=done, total=total)

    def show(self, line: str, *, done: int | None = None, total: int | None = None) -> None:
        """Make this the newest state: what is at work now, told when it takes long."""
        self.written = time.monotonic()
        state = {"line": line, "done": done, "total": total, "elapsed": round(self.elapsed(), 1),
                 "updated_at": time.time()}
        files.write_json(self.folder / "progress.json", state)


def plain_environment(extra: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return the explicit environment a job starts from: nothing of the caller's but a proxy and its home."""
    kept = {name: value for name, value in os.environ.items() if name.lower() in PROXY_NAMES}
    base = {"PATH": SYSTEM_PATH, "HOME": home(), "LANG": "C.UTF-8", "PYTHONNOUSERSITE": "1"}
    return {**kept, **base, **(extra or {})}


def child_environment(extra: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return a plain environment for what must not outlive this job: with the mark by which a rerun finds it."""
    mark = os.environ.get(JOB_MARK)
    return plain_environment({**({JOB_MARK: mark} if mark else {}), **(extra or {})})


def package_sources() -> dict[str, bytes]:
    """Return the files of this very package, from its folder or from the archive Ansible sent."""
    return dict(_sources_below(importlib.resources.files(PACKAGE), ""))


def _sources_below(folder: Any, prefix: str) -> Iterator[tuple[str, bytes]]:
    for item in folder.iterdir():
        if item.is_dir():
            yield from _sources_below(item, f"{prefix}{item.name}/")
        elif item.name.endswith(".py"):
            yield prefix + item.name, item.read_bytes()


def install_package(layout: Layout) -> Path:
    """Copy this package to `ops/<hash>/dflash_ops`, where it stays when the module is gone; return `ops/<hash>`."""
    sources = package_sources()
    digest = hashlib.sha256()
    for name in sorted(sources):
        digest.update(name.encode() + b"\0" + sources[name] + b"\0")
    place = layout.ops / digest.hexdigest()[:16]
    if (place / "dflash_ops").is_dir():
        return place
    aside = layout.ops / f".{place.name}.{os.getpid()}"
    shutil.rmtree(aside, ignore_errors=True)
    for name, data in sources.items():
        target = aside / "dflash_ops" / name
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(data)
    try:
        os.rename(aside, place)
    except OSError:  # another call was faster; its copy is the same bytes
        shutil.rmtree(aside, ignore_errors=True)
    return place


@contextlib.contextmanager
def try_lock(layout: Layout, job_id: str) -> Iterator[int | None]:
    """Yield a descriptor that holds the job's lock, or None when its runner (or another starter) has it."""
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
    """Return the runner named in job.json; None when there is none or it is of another boot."""
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
    ended = files.read_json(folder / "exit.json")  # read after the look, so an end in between is seen
    if ended:
        return "done" if ended.get("ok") else "failed"
    return "running" if running else "dead"


def read_lines(folder: Path, offset: int) -> tuple[list[str], int]:
    """Return the whole lines after byte `offset`, and the offset behind them."""
    try:
        with (folder / "lines").open("rb") as stream:
            stream.seek(offset)
            data = stream.read()
    except OSError:
        return [], offset
    whole = data[: data.rfind(b"\n") + 1]
    return whole.decode(errors="replace").splitlines(), offset + len(whole)


def snapshot(layout: Layout, job_id: str, *, offset: int = 0, attached: bool = False) -> Snapshot:
    """Return what is known of a job now."""
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
    """Return a snapshot, waiting up to `wait` seconds for something new to be said or for the end.

    What was said may be a job's last words: it gets a moment to end, which saves the caller another look.
    """
    heard, deadline = False, time.monotonic() + wait
    while True:
        now = snapshot(layout, job_id, offset=offset)
        if now.lines and not heard:
            heard, deadline = True, min(deadline, time.monotonic() + FINAL_LINES_SECONDS)
        if now.state != "running" or time.monotonic() >= deadline:
            return now
        time.sleep(POLL_SECONDS)


def job_mark(layout: Layout, job_id: str) -> str:
    """Name this job of this root in this process table: another root or container may have the same job."""
    return f"{processes.pid_namespace()} {layout.job(job_id)}"


def terminate_leftovers(layout: Layout, job_id: str) -> None:
    """End what a killed runner left behind; it would go on writing into a folder that is about to be made anew."""
    marked = processes.find_marked(job_mark(layout, job_id), mark=JOB_MARK)
    left = [process for process in marked if process.pid != os.getpid()]
    processes.send_signal(left, signal.SIGTERM)
    left = processes.wait_for_exit(left, 5.0)
    processes.send_signal(left, signal.SIGKILL)
    if processes.wait_for_exit(left, 10.0):
        pids = ", ".join(str(process.pid) for process in left)
        raise OpsError(f"Processes of an earlier job {job_id} do not end: {pids}.",
                       remedy="look at them with ps; they wait for a disk")


def start_or_attach(layout: Layout, job_id: str, entry: str, arguments: Mapping[str, Any], *, title: str = "",
                    environment: Mapping[str, str] | None = None) -> Snapshot:
    """Start a job, or attach to it when it already runs.

    Args:
        layout: where the box's folders are.
        job_id: one name for one piece of work; the same work asked twice must get the same name.
        entry: `module:function` inside this package; called as function(arguments, progress), returns a JSON object.
        arguments: what the function gets; JSON, may hold secrets.
        title: what the job does, for people.
        environment: more variables for the runner, beside the plain ones.
    """
    if not JOB_ID_RULE.fullmatch(job_id):
        raise OpsError(f"Job name {job_id!r} has characters that a folder name must not have.")
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
            raise OpsError(f"Job {job_id} is held by a process that neither runs it nor ends.",
                           remedy=f"see who holds {layout.jobs / f'.{job_id}.lock'} (fuser) and end it")
        time.sleep(0.1)


def _absolute(layout: Layout, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Give a job the folders themselves: its plain environment may expand ~ to another home than the caller's."""
    folders = {"root": str(layout.root), "workspace": str(layout.workspace)}
    return {**arguments, **{name: folder for name, folder in folders.items() if name in arguments}}


def _start(layout: Layout, job_id: str, lock: int, *, message: dict[str, Any],
           environment: Mapping[str, str] | None) -> Snapshot:
    """Start the runner and wait until it has written job.json. The lock passes to the runner."""
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
    """End a running job and its children; tell whether there was one."""
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
    """Be the runner: read the message, record who runs, do the work, write exit.json."""
    folder, lock = Path(sys.argv[2]), int(sys.argv[3])
    os.set_inheritable(lock, False)
    message = json.loads(sys.stdin.buffer.read())
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, _on_term)
    me = processes.find(os.getpid())
    assert me is not None
    files.write_json(folder / "job.json", {**{name: message[name] for name in ("job_id", "entry", "title", "token")},
                                           **me.as_dict(), "boot_id": processes.boot_id(), "started_at": time.time(),
                                           "python": sys.executable})
    progress = Progress(folder)
    ended = _run_entry(message, progress)
    ended.update(seconds=round(progress.elapsed(), 2), finished_at=time.time())
    files.write_json(folder / "exit.json", ended)
    sys.exit(0 if ended["ok"] else 1)


class Stopped(BaseException):
    """SIGTERM came. Not an Exception: work that goes on after an error of one of its ways must not go on after this."""


def _on_term(_number: int, _frame: FrameType | None) -> None:
    raise Stopped


def _run_entry(message: dict[str, Any], progress: Progress) -> dict[str, Any]:
    module_name, _, function_name = message["entry"].partition(":")
    try:
        function = getattr(importlib.import_module(f"{PACKAGE}.{module_name}"), function_name)
        return {"ok": True, "result": function(message["arguments"], progress)}
    except Stopped:
        return {"ok": False, "message": "The job was told to stop (SIGTERM).",
                "remedy": "run the playbook again: it starts anew", "facts": {}}
    except OpsError as error:
        print(str(error), flush=True)
        return {"ok": False, "message": error.message, "remedy": error.remedy, "facts": error.facts}
    except Exception as error:
        print(traceback.format_exc(), flush=True)
        told = disk.explain_os_error(error, _layout_of(message["arguments"])) if isinstance(error, OSError) else None
        if told is not None:
            return {"ok": False, "message": told.message, "remedy": told.remedy, "facts": {}}
        return {"ok": False, "message": f"{type(error).__name__}: {error}", "remedy": f"see {progress.folder / 'log'}",
                "facts": {}}


def _layout_of(arguments: Mapping[str, Any]) -> Layout:
    return Layout.of(arguments.get("root") or "/", arguments.get("workspace"))
