"""One process of the trainer that compiles and tunes every shape of a configuration, or finds all of it."""

from __future__ import annotations

import os
import re
import signal
import subprocess
from pathlib import Path
from typing import Any

from ..core import disk, files, jobs
from ..core.errors import OpsError
from ..core.jobs import Progress
from ..core.paths import Layout
from ..monitor import failures
from ..run import trainer_command
from ..run.trainer_command import Selection

SHAPE_DONE = re.compile(r"warmup (\d+)/(\d+) ")
SHAPE_STARTED = re.compile(r"compiling (\d+)/(\d+) ")
TAIL_LINES = 200
# How the warm-up ends when no cache is to blame: a refused configuration, inputs, a lost GPU, ended from outside.
UNRELATED_EXIT_CODES = (2, 3, 7, -signal.SIGKILL, -signal.SIGTERM, -signal.SIGINT)
UNRELATED_FAILURES = ("disk-full", "disk-error", "no-compiler", "gpu-out-of-memory")


class WarmupError(OpsError):
    """A process could not use the cache, or had to compile what the cache should have given it.

    Args:
        unrelated: the cause cannot lie in the cache's files.
    """

    def __init__(self, message: str, *, remedy: str = "", unrelated: bool = False) -> None:
        super().__init__(message, remedy=remedy)
        self.unrelated = unrelated


def warm_up(layout: Layout, selection: Selection, folder: Path, progress: Progress, *, name: str) -> dict[str, Any]:
    """Run the trainer's warm-up once in a process of its own; return its report.

    Raises:
        WarmupError: it fails, with the failure named from its output.
    """
    report = folder / f".report-{name}.tmp"
    report.unlink(missing_ok=True)
    layout.tmp.mkdir(mode=0o700, exist_ok=True)
    argv = trainer_command.command(layout, selection, "warmup", "--cache-dir", str(folder), "--report", str(report))
    values = trainer_command.environment(layout, selection, cache=folder)
    values |= {key: os.environ[key] for key in (jobs.JOB_MARK,) if key in os.environ}
    progress.say(f"{name}: starting the warm-up")
    child = subprocess.Popen(
        argv,
        env=values,
        cwd=trainer_command.trainer_folder(layout, selection.release_id),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
    )
    try:
        tail = _follow(child, progress, name)
        rc = child.wait()
    finally:
        if child.poll() is None:
            child.kill()
            child.wait()
    value = files.read_json(report)
    report.unlink(missing_ok=True)
    if rc != 0 or not isinstance(value, dict) or not value.get("ok"):
        raise _failure(name, rc, "\n".join(tail), folder)
    return value


def _follow(child: subprocess.Popen[str], progress: Progress, name: str) -> list[str]:
    """Say each finished step, show the one at work, log the rest; return the last lines."""
    assert child.stdout is not None
    tail: list[str] = []
    for line in child.stdout:
        tail = [*tail[-TAIL_LINES:], line.rstrip()]
        if match := SHAPE_DONE.match(line):
            progress.say(f"{name}: {line.strip()}", done=int(match.group(1)), total=int(match.group(2)))
            continue
        if match := SHAPE_STARTED.match(line):  # shown key it takes long
            progress.show(f"{name}: {line.strip()}", done=int(match.group(1)) - 1, total=int(match.group(2)))
        print(line.rstrip(), flush=True)
    return tail


def _failure(name: str, rc: int, output: str, folder: Path) -> WarmupError:
    told = failures.explain(output)[0]
    if told["name"] == "unknown" and rc < 0:
        told = failures.problem(
            "killed", f"signal {-rc} ended it", "run the same playbook again; dmesg shows whether memory ran out"
        )
    if told["name"] == "disk-full":  # the catalogue speaks of a run's checkpoints
        told = failures.problem(
            "disk-full",
            f"no space left on {disk.mount_of(folder)} (for {folder}) or {disk.mount_of(folder.parents[1] / 'tmp')}",
            "free some (playbooks/prune.yml shows what can go), or put dflash_root on a larger mount",
        )
    return WarmupError(
        f"the warm-up ({name}) ended with rc {rc}: {told['name']}: {told['message']}",
        remedy=told["remedy"],
        unrelated=rc in UNRELATED_EXIT_CODES or told["name"] in UNRELATED_FAILURES,
    )
