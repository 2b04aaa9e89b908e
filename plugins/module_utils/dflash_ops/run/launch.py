"""Launch a run: create its folder in one rename, start it in a tmux session and wait for its process."""

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import os
import shlex
import shutil
import socket
import sys
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from ..core import files, jobs, processes, tmux
from ..core.errors import OpsError
from ..core.paths import SYSTEM_PATH, Layout, home
from . import resume, run_processes, runs, secrets_file, trainer_command
from .start_script import start_script
from .trainer_command import Selection

APPEAR_SECONDS = 20.0
CONFIG = "config.json"  # in the run's folder: the resolved configuration that the trainer starts from


@dataclasses.dataclass(frozen=True)
class Request:
    """Options of a launch.

    Args:
        selection: environment, release, configuration, extra variables.
        label: second part of the run's id, after the time.
        session: tmux session name.
        operator: who launches, `name@controller`.
        cache_id: the compile cache to use; empty: none.
        resume: `auto` (the newest run of the same configuration), `never`, or a run id.
        bad: runs that `auto` never resumes from, nor from their descendants.
        good: runs whose own checkpoints are good whatever they resumed from.
        expected_tok_s: expected speed in tokens a second; 0 when unknown.
        tolerance: fraction of the expected speed that is accepted.
        speed_steps: number of steps over which the speed is measured.
        script_link: absolute path of a symlink to start_training.sh; empty: none.
        notify: notification hook: {"command": ..., "url": ..., "events": [...]}; empty: none.
        origin: reason for the launch, such as {"rollback_to": run id}; part of the record.
    """

    selection: Selection
    label: str
    session: str = "dflash"
    operator: str = ""
    cache_id: str = ""
    resume: str = "auto"
    bad: Collection[str] = ()
    good: Collection[str] = ()
    expected_tok_s: float = 0.0
    tolerance: float = 0.8
    speed_steps: int = 10
    script_link: str = ""
    notify: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    origin: Mapping[str, Any] = dataclasses.field(default_factory=dict)


@contextlib.contextmanager
def launch_lock(layout: Layout) -> Iterator[None]:
    """Allow one launch at a time.

    Raises:
        OpsError: another launch is in progress.
    """
    layout.root.mkdir(parents=True, exist_ok=True)
    handle = os.open(layout.root / ".launch.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    except BlockingIOError as error:
        raise OpsError(
            "another launch is in progress on this box.", remedy="wait a moment, then run status.yml"
        ) from error
    finally:
        os.close(handle)


def require_program(name: str) -> str:
    """Return the absolute path of a program of the box.

    Raises:
        OpsError: the program is missing; the message names the folders that were searched.
    """
    found = shutil.which(name, path=SYSTEM_PATH)
    if not found:
        raise OpsError(
            f"{name} is missing; searched {SYSTEM_PATH}.",
            remedy=f"install the package {name} on the box",
        )
    return found


def tmux_server(layout: Layout) -> tmux.Server:
    """Return the tmux server of this box: its socket is below the root, and it inherits no environment."""
    values = {
        "PATH": SYSTEM_PATH,
        "HOME": home(),
        "LANG": "C.UTF-8",
        "TERM": "screen-256color",
        "SHELL": "/bin/sh",
    }
    return tmux.Server(socket=layout.tmux_socket, binary=require_program("tmux"), environment=values)


def require_nothing_running(layout: Layout) -> None:
    """Check that no run of this box has processes.

    Raises:
        OpsError: a run has processes; the message names it and their pids.
    """
    for run_id, found in run_processes.running_processes(layout).items():
        pids = ", ".join(str(process.pid) for process in found)
        main = run_processes.main_process(runs.load(layout, run_id))
        state = "is running" if main else "has ended, but some of its processes are still running"
        raise OpsError(
            f"run {run_id} {state} (pid {pids}).",
            remedy="playbooks/stop.yml stops it; relaunch.yml stops it and starts a new run",
            facts={"run_id": run_id, "running": bool(main)},
        )


def close_ended_session(layout: Layout, name: str) -> None:
    """Close the session `name` when it belongs to an ended run; a session of anyone else stays."""
    host = tmux_server(layout)
    found = host.find(tmux.check_name(name))
    if found is not None and found.run_id and not run_processes.running_processes(layout).get(found.run_id):
        host.end(found)


def start(layout: Layout, request: Request, record: Mapping[str, Any]) -> runs.Run:
    """Start the run and return it once its process exists.

    Args:
        layout: the box.
        request: options of the launch.
        record: facts of the preflight checks (config, gpus, fingerprints, packages); part of run.json.

    Raises:
        OpsError: a run is running, the session is taken, or no process appeared. The folder of a run whose session
            did not start is removed.
    """
    with launch_lock(layout):
        require_nothing_running(layout)
        check_script_link(request.script_link)
        close_ended_session(layout, request.session)
        run = _create_run(layout, request, record)
        try:
            tmux_server(layout).start(
                request.session,
                [*_clean_shell(), str(run.folder / "start_training.sh")],
                run_id=run.run_id,
                folder=run.folder,
            )
        except OpsError:
            shutil.rmtree(run.folder, ignore_errors=True)
            raise
        process = wait_process(run)
        if process is not None:
            files.write_json(run.folder / "process.json", {**process.as_dict(), "boot_id": processes.boot_id()})
        runs.set_current(layout, run.run_id)
        if request.script_link:
            _replace_script_link(Path(request.script_link), run.folder / "start_training.sh")
        return run


def wait_process(run: runs.Run, *, seconds: float = APPEAR_SECONDS) -> processes.Process | None:
    """Wait for the trainer's process; return None when it already ended (exit.json has the exit code).

    Raises:
        OpsError: neither a process nor exit.json appeared.
    """
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        process = run_processes.process_from_pid_file(run)
        if process is not None or (run.folder / "exit.json").exists():
            return process
        time.sleep(0.05)
    raise OpsError(
        f"run {run.run_id}: no trainer process appeared within {seconds:g} s.",
        remedy=f"read {run.log} and run {run.folder / 'start_training.sh'} by hand",
    )


def _clean_shell() -> list[str]:
    values = {"PATH": SYSTEM_PATH, "HOME": home(), "LANG": "C.UTF-8"}
    variables = [f"{name}={value}" for name, value in values.items()]
    return [require_program("env"), "-i", *variables, require_program("bash")]


def _create_run(layout: Layout, request: Request, record: Mapping[str, Any]) -> runs.Run:
    """Write the run's folder in a staging directory and rename it into place."""
    label = runs.normalise_label(request.label)
    layout.runs.mkdir(parents=True, exist_ok=True)
    now = time.time()
    run_id = runs.new_run_id(label, now=now, taken=os.listdir(layout.runs))
    folder, staging = layout.run(run_id), layout.runs / f".{run_id}.new"
    config = dict(record.get("config") or {})
    trainer = trainer_command.trainer_folder(layout, request.selection.release_id)
    identity = resume.identity_of(config, trainer=trainer)
    source = _resume_source(layout, request, identity)
    values = trainer_command.environment(
        layout, request.selection, run=folder, cache=layout.cache(request.cache_id) if request.cache_id else None
    )
    command = trainer_command.resolved_command(
        layout, request.selection, "train", folder / CONFIG, *_train_arguments(layout, request, folder, source)
    )
    secrets = secrets_file.read(layout)
    full = {
        "run_id": run_id,
        "label": label,
        "started_at": round(now, 3),
        "operator": request.operator,
        "host": socket.gethostname(),
        **record,
        "env_id": request.selection.env_id,
        "release_id": request.selection.release_id,
        "cache_id": request.cache_id,
        "config_file": request.selection.config,
        "overrides": list(request.selection.overrides),
        "resume_identity": identity,
        "resume_from": source.run_id if source else "",
        "resume_step": max(runs.checkpoint_steps(source), default=None) if source else None,
        "command": command,
        "environment": sorted([*values, *secrets]),
        "secrets": sorted(secrets),
        "extra_environment": dict(request.selection.extra),
        "session": request.session,
        "expected": {"tok_s": request.expected_tok_s, "tolerance": request.tolerance, "steps": request.speed_steps},
        "notify": dict(request.notify),
        "origin": dict(request.origin),
        "oom_kills": run_processes.cgroup_oom_kills(),
        "boot_id": processes.boot_id(),
    }
    script = start_script(
        run_id=run_id,
        run=folder,
        folder=trainer,
        environment=values,
        command=command,
        bash=require_program("bash"),
        secrets=secrets_file.path(layout) if secrets else None,
        notifier=_notifier_command(layout, run_id, request.notify),
        manual_command=shlex.join([*_clean_shell(), str(folder / "start_training.sh")]),
    )
    shutil.rmtree(staging, ignore_errors=True)
    layout.tmp.mkdir(mode=0o700, exist_ok=True)
    staging.mkdir()
    files.write_text(staging / "start_training.sh", script, mode=0o755)
    (staging / "train.log").touch()
    (staging / f"train_{label}.log").symlink_to("train.log")
    files.write_json(staging / CONFIG, config)
    files.write_json(staging / "run.json", full)
    os.rename(staging, folder)
    return runs.Run(run_id=run_id, folder=folder, record=full)


def _resume_source(layout: Layout, request: Request, identity: str) -> runs.Run | None:
    if request.resume == "never":
        return None
    if request.resume != "auto":
        return runs.load(layout, request.resume)
    rollback_to = str(request.origin.get("rollback_to") or "")
    return resume.find_source(layout, identity, bad=request.bad, good=request.good, rollback_to=rollback_to)


def _train_arguments(layout: Layout, request: Request, folder: Path, source: runs.Run | None) -> Sequence[str]:
    arguments = ["--run-dir", str(folder)]
    if source is not None:
        arguments += ["--resume-from", str(source.checkpoints)]
    if request.cache_id:
        arguments += ["--cache-dir", str(layout.cache(request.cache_id))]
    return arguments


def _notifier_command(layout: Layout, run_id: str, notify: Mapping[str, Any]) -> list[str]:
    """Return the argv of the notifier; the box's own Python runs it, so it also reports a broken environment."""
    if not notify:
        return []
    boot = "import sys; sys.path.insert(0, sys.argv[1]); from dflash_ops.monitor.notify import main; main(sys.argv[2:])"
    return [
        sys.executable,
        "-I",
        "-B",
        "-c",
        boot,
        str(jobs.install_package(layout)),
        str(layout.root),
        str(layout.workspace),
        run_id,
    ]


def check_script_link(path: str) -> None:
    """Check that the symlink to start_training.sh replaces nothing but a symlink.

    Raises:
        OpsError: the path exists and is not a symlink.
    """
    link = Path(path)
    if path and os.path.lexists(link) and not link.is_symlink():
        raise OpsError(
            f"training_run_script_link is {link}, which exists and is not a symlink.",
            remedy="move it away or choose another path",
        )


def _replace_script_link(link: Path, script: Path) -> None:
    link.parent.mkdir(parents=True, exist_ok=True)
    files.replace_link(link, script)
