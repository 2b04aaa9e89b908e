"""Messages after Ctrl-C in a real terminal during a build, which keeps running and can be attached to or stopped."""

from __future__ import annotations

import json
import os
import pty
import select
import shutil
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import wheels
from dflash_ops.core import jobs, processes
from dflash_ops.core.paths import Layout
from dflash_ops.environment import uv_binary

SLOW = "import time\ntime.sleep(300)\n"
CTRL_C = b"\x03"
END = "\0"  # never printed
ATTACH = "the same command attaches to it"


class Terminal:
    """One command in a separate terminal, where it leads the session and gets the signals of pressed keys."""

    def __init__(self, *command: str, cwd: Path) -> None:
        self.output = ""
        self.pid, self.screen = pty.fork()
        if self.pid == 0:
            os.chdir(cwd)
            config = {"ANSIBLE_NOCOLOR": "1", "ANSIBLE_CONFIG": f"{cwd}/ansible.cfg"}
            os.execve(command[0], command, {**os.environ, **config})

    def read_until(self, text: str, seconds: float = 60) -> None:
        """Read until a text was printed, or with END until the command ends."""
        deadline = time.monotonic() + seconds
        while text not in self.output:
            assert time.monotonic() < deadline, self.output
            if select.select([self.screen], [], [], 0.2)[0]:
                try:
                    self.output += os.read(self.screen, 65536).decode(errors="replace").replace("\r\n", "\n")
                except OSError:  # the other end is closed
                    assert text == END, f"{text} was not printed: {self.output}"
                    return

    def press(self, key: bytes) -> None:
        os.write(self.screen, key)

    def finish(self) -> int:
        """Return the exit code, after reading everything."""
        self.read_until(END)
        os.close(self.screen)
        return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])

    @property
    def one_line(self) -> str:
        return " ".join(self.output.split())


@pytest.fixture
def command(tmp_path: Path, layout: Layout) -> Iterator[list[str]]:
    """The options for a box whose environment takes minutes to self-test; its jobs are stopped afterwards."""
    folder = tmp_path / "wheels"
    torch = wheels.torch_files("2.13.0+cpu", cuda=None)
    torch["torch/__init__.py"] += SLOW
    wheels.make_wheel(folder, "torch", "2.13.0+cpu", torch)
    wheels.make_wheel(folder, "transformers", "5.8.1", wheels.TRANSFORMERS)
    lock = tmp_path / "own.lock"
    indexes = {"torch": "http://127.0.0.1:9/simple"}
    lock.write_text(wheels.make_lock(sorted(folder.glob("*.whl")), indexes=indexes))
    uv = uv_binary.install_path(layout, uv_binary.uv_pin(wheels.UV_LOCK.read_text()))
    uv.parent.mkdir(parents=True)
    shutil.copy(Path(sys.executable).parent / "uv", uv)
    given = {
        "dflash_root": str(layout.root),
        "dflash_workspace": str(tmp_path / "workspace"),
        "python_env_lock_file": str(lock),
        "python_env_find_links": [str(folder)],
        "python_env_index_urls": {"default": "none"},
    }
    yield ["--extra-vars", json.dumps(given)]
    for name in os.listdir(layout.jobs) if layout.jobs.is_dir() else ():
        jobs.stop_job(layout, name)


def test_an_interrupted_build_keeps_running_and_can_be_attached_to_or_stopped(
    repo: Path, layout: Layout, command: list[str]
) -> None:
    program = str(Path(sys.executable).with_name("ansible-playbook"))
    build = [program, "relaunch.yml", "--tags", "env", *command]
    stop = [program, "playbooks/stop.yml", *command]

    interrupted = Terminal(*build, cwd=repo)
    interrupted.read_until("self-test")
    interrupted.press(CTRL_C)
    assert interrupted.finish() == 99, interrupted.output
    job = next(folder.name for folder in layout.jobs.glob("env-*"))
    message = f"{job} keeps running on the box: {ATTACH}; playbooks/stop.yml -e job={job} cancels it"
    assert f"localhost | {message}" in interrupted.output.partition("User interrupted execution")[2]
    assert jobs.poll(layout, job).state == "running"

    terminated = Terminal(*build, cwd=repo)
    terminated.read_until(f"attached to {job}")
    os.kill(terminated.pid, signal.SIGTERM)  # as a supervisor or a shutdown of the controller does
    assert terminated.finish() == 99, terminated.output
    assert message in terminated.output.partition("User interrupted execution")[2]
    assert jobs.poll(layout, job).state == "running"

    idle = Terminal(*stop, cwd=repo)
    assert idle.finish() == 0, idle.output
    assert f"no run was ever launched on this box; {job} (build environment" in idle.one_line
    assert f"keeps running; -e job={job} cancels it" in idle.one_line
    attached = Terminal(*build, cwd=repo)
    attached.read_until(f"attached to {job}")
    stopped = Terminal(*stop, "-e", f"job={job}", cwd=repo)
    assert stopped.finish() == 0, stopped.output
    assert attached.finish() == 2
    assert f"cancelled {job} (build environment" in stopped.one_line
    assert jobs.poll(layout, job).state == "failed"
    assert processes.find_marked(jobs.job_mark(layout, job), mark=jobs.JOB_MARK) == []
    repeated = Terminal(*stop, "-e", f"job={job}", cwd=repo)
    assert repeated.finish() == 0
    assert f"no job to cancel; {job} is failed" in repeated.one_line


def test_a_playbook_that_finished_prints_no_exit_message(repo: Path, tmp_path: Path) -> None:
    program = str(Path(sys.executable).with_name("ansible-playbook"))
    status = Terminal(program, "playbooks/status.yml", "-e", f"dflash_root={tmp_path}/root", cwd=repo)
    assert status.finish() == 0
    assert ATTACH not in status.output
