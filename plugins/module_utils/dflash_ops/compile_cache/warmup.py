"""One warm-up process of the trainer, which compiles every shape of a configuration or loads it from the cache."""

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
# Failures that the cache cannot cause: a rejected configuration, missing inputs, a lost GPU, a signal from outside.
UNRELATED_EXIT_CODES = (2, 3, 7, -signal.SIGKILL, -signal.SIGTERM, -signal.SIGINT)
UNRELATED_FAILURES = ("disk-full", "disk-error", "no-compiler", "gpu-out-of-memory")


class WarmupError(OpsError):
    """A warm-up process failed, or had to compile shapes that the cache should have held.

    Args:
        message: the problem.
        remedy: its remedy.
        unrelated: the cache's files cannot be the cause.
    """

    def __init__(self, message: str, *, remedy: str = "", unrelated: bool = False) -> None:
        super().__init__(message, remedy=remedy)
        self.unrelated = unrelated


def warm_up(layout: Layout, selection: Selection, folder: Path, progress: Progress, *, name: str) -> dict[str, Any]:
    """Run the trainer's warm-up once in a new process and return its report.

    Args:
        layout: the box.
        selection: environment, release and configuration.
        folder: the cache.
        progress: receives the progress lines.
        name: name of this process in the progress lines.

    Raises:
        WarmupError: it fails, with the failure identified from its output.
    """
    report = folder / f".report-{name}.tmp"
    report.unlink(missing_ok=True)
    layout.tmp.mkdir(mode=0o700, exist_ok=True)
    argv = trainer_command.command(layout, selection, "warmup", "--cache-dir", str(folder), "--report", str(report))
    variables = trainer_command.environment(layout, selection, cache=folder)
    variables |= {mark: os.environ[mark] for mark in (jobs.JOB_MARK,) if mark in os.environ}
    progress.say(f"{name}: starting the warm-up")
    child = subprocess.Popen(
        argv,
        env=variables,
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
    result = files.read_json(report)
    report.unlink(missing_ok=True)
    if rc != 0 or not isinstance(result, dict) or not result.get("ok"):
        raise _failure(name, rc, "\n".join(tail), folder)
    return result


def _follow(child: subprocess.Popen[str], progress: Progress, name: str) -> list[str]:
    """Report each finished shape, show the current one, log the other lines; return the last lines."""
    assert child.stdout is not None
    tail: list[str] = []
    for line in child.stdout:
        tail = [*tail[-TAIL_LINES:], line.rstrip()]
        if match := SHAPE_DONE.match(line):
            progress.say(f"{name}: {line.strip()}", done=int(match.group(1)), total=int(match.group(2)))
            continue
        if match := SHAPE_STARTED.match(line):  # printed only when the shape takes long
            progress.show(f"{name}: {line.strip()}", done=int(match.group(1)) - 1, total=int(match.group(2)))
        print(line.rstrip(), flush=True)
    return tail


def _failure(name: str, rc: int, output: str, folder: Path) -> WarmupError:
    failure = failures.explain(output)[0]
    if failure["name"] == "unknown" and rc < 0:
        failure = failures.problem(
            "killed", f"it was killed by signal {-rc}", "run the same playbook again; dmesg shows an out-of-memory kill"
        )
    if failure["name"] == "disk-full":  # the catalogue's remedy is about the checkpoints of a run
        failure = failures.problem(
            "disk-full",
            f"no space left on {disk.mount_of(folder)} (for {folder}) or {disk.mount_of(folder.parents[1] / 'tmp')}",
            "free space (playbooks/prune.yml lists candidates), or put dflash_root on a larger mount",
        )
    return WarmupError(
        f"The warm-up ({name}) ended with rc {rc}: {failure['name']}: {failure['message']}",
        remedy=failure["remedy"],
        unrelated=rc in UNRELATED_EXIT_CODES or failure["name"] in UNRELATED_FAILURES,
    )
