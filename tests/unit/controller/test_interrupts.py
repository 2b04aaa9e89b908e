"""Ctrl-C at a real terminal while a box builds: what is said, what goes on, and how it is ended."""

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
END = "\0"  # what nobody says


class Terminal:
    """One command at a terminal of its own: the leader of a session, whose keys reach its foreground group."""

    def __init__(self, *words: str, cwd: Path) -> None:
        self.said = ""
        self.pid, self.screen = pty.fork()
        if self.pid == 0:
            os.chdir(cwd)
            os.execve(words[0], words, {**os.environ, "ANSIBLE_NOCOLOR": "1", "ANSIBLE_CONFIG": f"{cwd}/ansible.cfg"})

    def read_until(self, words: str, seconds: float = 60) -> None:
        """Read until some words were said, or to the end."""
        deadline = time.monotonic() + seconds
        while words not in self.said:
            assert time.monotonic() < deadline, self.said
            if select.select([self.screen], [], [], 0.2)[0]:
                try:
                    self.said += os.read(self.screen, 65536).decode(errors="replace").replace("\r\n", "\n")
                except OSError:  # the other end is closed
                    assert words == END, f"{words} was not said: {self.said}"
                    return

    def press(self, key: bytes) -> None:
        os.write(self.screen, key)

    def finish(self) -> int:
        """Return the exit code, after reading everything."""
        self.read_until(END)
        os.close(self.screen)
        return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])

    @property
    def words(self) -> str:
        return " ".join(self.said.split())


@pytest.fixture
def command(tmp_path: Path, layout: Layout) -> Iterator[list[str]]:
    """The variables of a box whose environment takes minutes to prove; nothing of it is left behind."""
    folder = tmp_path / "wheels"
    torch = wheels.torch_files("2.13.0+cpu", cuda=None)
    torch["torch/__init__.py"] += SLOW
    wheels.make_wheel(folder, "torch", "2.13.0+cpu", torch)
    wheels.make_wheel(folder, "transformers", "5.8.1", wheels.TRANSFORMERS)
    lock = tmp_path / "own.lock"
    indexes = {"torch": "http://127.0.0.1:9/simple"}
    lock.write_text(wheels.make_lock(sorted(folder.glob("*.whl")), indexes=indexes))
    uv = uv_binary.place(layout, uv_binary.pinned(wheels.UV_LOCK.read_text()))
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


def test_an_interrupted_build_goes_on_is_attached_to_and_can_be_ended(
    repo: Path, layout: Layout, command: list[str]
) -> None:
    program = str(Path(sys.executable).with_name("ansible-playbook"))
    build = [program, "relaunch.yml", "--tags", "env", *command]
    stop = [program, "playbooks/stop.yml", *command]

    first = Terminal(*build, cwd=repo)
    first.read_until("proving")
    first.press(CTRL_C)
    assert first.finish() == 99, first.said
    job = next(folder.name for folder in layout.jobs.glob("env-*"))
    words = f"{job} goes on on the box: the same command attaches to it; playbooks/stop.yml -e job={job} ends it"
    assert f"localhost | {words}" in first.said.partition("User interrupted execution")[2]
    assert jobs.poll(layout, job).state == "running"

    second = Terminal(*build, cwd=repo)
    second.read_until(f"attached to {job}")
    os.kill(second.pid, signal.SIGTERM)  # as a supervisor or a shutdown of the controller does
    assert second.finish() == 99, second.said
    assert words in second.said.partition("User interrupted execution")[2]
    assert jobs.poll(layout, job).state == "running"

    idle = Terminal(*stop, cwd=repo)
    assert idle.finish() == 0, idle.said
    assert f"no run was ever launched on this box; {job} (build environment" in idle.words
    assert f"keeps running; -e job={job} cancels it" in idle.words
    follower = Terminal(*build, cwd=repo)
    follower.read_until(f"attached to {job}")
    ended = Terminal(*stop, "-e", f"job={job}", cwd=repo)
    assert ended.finish() == 0, ended.said
    assert follower.finish() == 2
    assert f"ended {job} (build environment" in ended.words
    assert jobs.poll(layout, job).state == "failed"
    assert processes.marked(jobs.mark_of(layout, job), mark=jobs.JOB_MARK) == []
    again = Terminal(*stop, "-e", f"job={job}", cwd=repo)
    assert again.finish() == 0
    assert f"no job to end; {job} is failed" in again.words


def test_what_came_to_its_end_leaves_no_such_words(repo: Path, tmp_path: Path) -> None:
    program = str(Path(sys.executable).with_name("ansible-playbook"))
    calm = Terminal(program, "playbooks/status.yml", "-e", f"dflash_root={tmp_path}/root", cwd=repo)
    assert calm.finish() == 0
    assert "goes on" not in calm.said
