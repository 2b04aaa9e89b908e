"""Launch a run: build its folder aside, start it in our tmux session, and know its process before saying so."""

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
    """What the operator asked for.

    Args:
        selection: environment, release, configuration, extra variables.
        label: the word behind the time in the run's id.
        session: tmux session name.
        operator: who launches, `name@controller`.
        cache_id: the compile cache to use; empty: none.
        resume: `auto` (the newest run of the same configuration), `never`, or a run id.
        bad: runs that `auto` never goes on from, nor from what came of them.
        proved: runs whose own checkpoints are good whatever they went on from.
        expected_tok_s: speed the run should reach; 0: not known.
        tolerance: part of that speed that is enough.
        speed_steps: steps over which a speed counts.
        keep_link: absolute path where a link to start_training.sh is kept; empty: none.
        notify: hook of the run: {"command": ..., "url": ..., "events": [...]}; empty: none.
        origin: why it was launched, such as {"rollback_to": run id}; lands in the record.
    """

    selection: Selection
    label: str
    session: str = "dflash"
    operator: str = ""
    cache_id: str = ""
    resume: str = "auto"
    bad: Collection[str] = ()
    proved: Collection[str] = ()
    expected_tok_s: float = 0.0
    tolerance: float = 0.8
    speed_steps: int = 10
    keep_link: str = ""
    notify: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    origin: Mapping[str, Any] = dataclasses.field(default_factory=dict)


@contextlib.contextmanager
def launching(layout: Layout) -> Iterator[None]:
    """Let one launch happen at a time.

    Raises:
        OpsError: another one is in progress.
    """
    layout.root.mkdir(parents=True, exist_ok=True)
    handle = os.open(layout.root / ".launch.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    except BlockingIOError as error:
        raise OpsError(
            "another launch is in progress on this box.", remedy="wait a moment, then look at status.yml"
        ) from error
    finally:
        os.close(handle)


def tool(name: str) -> str:
    """Return the absolute path of a program of the box.

    Raises:
        OpsError: naming the program and the folders it was looked for in.
    """
    found = shutil.which(name, path=SYSTEM_PATH)
    if not found:
        raise OpsError(
            f"{name} is missing; looked in {SYSTEM_PATH}.",
            remedy=f"install the package {name} on the box",
        )
    return found


def server(layout: Layout) -> tmux.Server:
    """Return our own tmux server: its socket lies under the root, and it inherits nothing."""
    values = {
        "PATH": SYSTEM_PATH,
        "HOME": home(),
        "LANG": "C.UTF-8",
        "TERM": "screen-256color",
        "SHELL": "/bin/sh",
    }
    return tmux.Server(socket=layout.tmux_socket, binary=tool("tmux"), environment=values)


def refuse_living(layout: Layout) -> None:
    """Refuse when a run of this box has processes.

    Raises:
        OpsError: naming the run and its pids.
    """
    for run_id, found in run_processes.all_living(layout).items():
        pids = ", ".join(str(process.pid) for process in found)
        main = run_processes.main_process(runs.load(layout, run_id))
        what = "lives" if main else "has ended, and processes of it are left"
        raise OpsError(
            f"run {run_id} {what} (pid {pids}).",
            remedy="playbooks/stop.yml ends it; relaunch.yml stops it and starts the next",
            facts={"run_id": run_id, "living": bool(main)},
        )


def free_session(layout: Layout, name: str) -> None:
    """Make sure that `name` can be used: an ended run's session of ours goes, anybody else's stays and refuses."""
    host = server(layout)
    found = host.find(tmux.check_name(name))
    if found is not None and found.run_id and not run_processes.all_living(layout).get(found.run_id):
        host.end(found)


def start(layout: Layout, request: Request, record: Mapping[str, Any]) -> runs.Run:
    """Start the run and return it once its process was seen.

    Args:
        layout: the box.
        request: what to start.
        record: what preflight found out (config, gpus, fingerprints, packages); joins run.json.

    Raises:
        OpsError: a run lives, the session is taken, or no process appeared. A run that never had a process leaves
            no folder behind.
    """
    with launching(layout):
        refuse_living(layout)
        refuse_link(request.keep_link)
        free_session(layout, request.session)
        run = _build(layout, request, record)
        try:
            server(layout).start(
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
        if request.keep_link:
            _keep_link(Path(request.keep_link), run.folder / "start_training.sh")
        return run


def wait_process(run: runs.Run, *, seconds: float = APPEAR_SECONDS) -> processes.Process | None:
    """Wait for the trainer's process; None when it came and went (exit.json then says how).

    Raises:
        OpsError: neither a process nor an end was seen.
    """
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        process = run_processes.named_process(run)
        if process is not None or (run.folder / "exit.json").exists():
            return process
        time.sleep(0.05)
    raise OpsError(
        f"run {run.run_id}: no trainer process appeared in {seconds:g} s.",
        remedy=f"read {run.log} and run {run.folder / 'start_training.sh'} by hand",
    )


def _clean_shell() -> list[str]:
    values = {"PATH": SYSTEM_PATH, "HOME": home(), "LANG": "C.UTF-8"}
    return [tool("env"), "-i", *(f"{name}={value}" for name, value in values.items()), tool("bash")]


def _build(layout: Layout, request: Request, record: Mapping[str, Any]) -> runs.Run:
    """Write the run's folder aside and rename it into place."""
    label = runs.normalise_label(request.label)
    layout.runs.mkdir(parents=True, exist_ok=True)
    now = time.time()
    run_id = runs.new_run_id(label, now=now, taken=os.listdir(layout.runs))
    folder, aside = layout.run(run_id), layout.runs / f".{run_id}.new"
    config = dict(record.get("config") or {})
    trainer = trainer_command.trainer_folder(layout, request.selection.release_id)
    identity = resume.identity_of(config, trainer=trainer)
    source = _resume(layout, request, identity)
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
        bash=tool("bash"),
        secrets=secrets_file.path_of(layout) if secrets else None,
        watch=_watch(layout, run_id, request.notify),
        by_hand=shlex.join([*_clean_shell(), str(folder / "start_training.sh")]),
    )
    shutil.rmtree(aside, ignore_errors=True)
    layout.tmp.mkdir(mode=0o700, exist_ok=True)
    aside.mkdir()
    files.write_text(aside / "start_training.sh", script, mode=0o755)
    (aside / "train.log").touch()
    (aside / f"train_{label}.log").symlink_to("train.log")
    files.write_json(aside / CONFIG, config)
    files.write_json(aside / "run.json", full)
    os.rename(aside, folder)
    return runs.Run(run_id=run_id, folder=folder, record=full)


def _resume(layout: Layout, request: Request, identity: str) -> runs.Run | None:
    if request.resume == "never":
        return None
    if request.resume != "auto":
        return runs.load(layout, request.resume)
    back_to = str(request.origin.get("rollback_to") or "")
    return resume.source(layout, identity, bad=request.bad, proved=request.proved, back_to=back_to)


def _train_arguments(layout: Layout, request: Request, folder: Path, source: runs.Run | None) -> Sequence[str]:
    words = ["--run-dir", str(folder)]
    if source is not None:
        words += ["--resume-from", str(source.checkpoints)]
    if request.cache_id:
        words += ["--cache-dir", str(layout.cache(request.cache_id))]
    return words


def _watch(layout: Layout, run_id: str, notify: Mapping[str, Any]) -> list[str]:
    """Return the argv of the notifier; the box's own Python runs it, so a broken environment is told too."""
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


def refuse_link(path: str) -> None:
    """Refuse to put the link to start_training.sh where something of the user's stands; asked before a run starts.

    Raises:
        OpsError: naming it.
    """
    link = Path(path)
    if path and os.path.lexists(link) and not link.is_symlink():
        raise OpsError(
            f"training_run_script_link is {link}, and a file stands there that is no link.",
            remedy="move it away or choose another path",
        )


def _keep_link(link: Path, script: Path) -> None:
    link.parent.mkdir(parents=True, exist_ok=True)
    files.replace_link(link, script)
