"""A build goes on when its box is out of reach, by pct and by plain ssh: the play finds back, a new one attaches."""
from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from conftest import REPO, login_variables
from dflash_lab import host
from dflash_lab.lab import Lab
from dflash_lab.layout import NODE, UNPRIVILEGED, address
from small_wheels import lock_of, make_wheelhouse

ROOT = "/opt/dflash cut"
SLOW = "import time\ntime.sleep(30)\n"  # the proof imports it: long enough to be cut


@pytest.fixture(scope="module")
def wheelhouse(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_wheelhouse(tmp_path_factory.mktemp("wheelhouse"), {"slow-start": {"slow_start.py": SLOW}})


@pytest.fixture(scope="module")
def node(lab: Lab) -> Lab:
    """The lab with its plain ssh node beside the others."""
    lab.create(NODE)
    lab.wait_ready(NODE)
    return lab


class Way:
    """One way to a box: how an inventory names it, and how its connections are cut. Owner: a test."""

    def __init__(self, lab: Lab, name: str) -> None:
        self.lab = lab
        self.box = {"pct": UNPRIVILEGED, "ssh": NODE}[name]
        self.variables = login_variables(lab)
        if name == "ssh":
            self.variables |= {"ansible_connection": "ssh", "ansible_host": address(NODE), "ansible_port": 22}

    def cut(self) -> int:
        """Kill every login that the way's sshd serves; return how many there were."""
        if self.box == NODE:
            listed = self.lab.inside(NODE, "ps", "-C", "sshd", "-o", "pid=,ppid=").stdout
            main = self.lab.inside(NODE, "systemctl", "show", "-P", "MainPID", "lab-ssh").stdout.strip()
            logins = [pid for pid, parent in map(str.split, listed.splitlines()) if parent == main]
            self.lab.inside(NODE, "kill", "-KILL", *logins, check=False)
            return len(logins)
        main = str(host.pid(self.lab.layout))
        logins = subprocess.run(["ps", "--ppid", main, "-o", "pid="], capture_output=True, text=True).stdout.split()
        for login in logins:
            os.kill(int(login), signal.SIGKILL)
        return len(logins)


@pytest.fixture(params=["pct", "ssh"])
def way(node: Lab, request: pytest.FixtureRequest) -> Way:
    return Way(node, request.param)


@contextmanager
def playing(way: Way, folder: Path, wheelhouse: Path, lock: Path) -> Iterator[tuple[subprocess.Popen[bytes], Path]]:
    """Run `relaunch.yml --tags env` in a session of its own; yield it and what it prints."""
    variables: dict[str, Any] = {
        "dflash_root": ROOT, "dflash_workspace": "", "dflash_profile": "cpu", "python_env_lock_file": str(lock),
        "python_env_wheelhouse": str(wheelhouse), "python_env_index_urls": {"default": "none", "torch": "none"},
    }
    folder.mkdir()
    (folder / "group_vars").symlink_to(REPO / "group_vars")
    inventory = {"trainers": {"hosts": {"box": way.variables | variables}}}
    (folder / "inventory.json").write_text(json.dumps(inventory), encoding="utf-8")
    command = [str(Path(sys.executable).with_name("ansible-playbook")), "relaunch.yml", "--tags", "env",
               "-i", str(folder / "inventory.json")]
    said = folder / "message"
    with said.open("wb") as out:
        play = subprocess.Popen(command, cwd=REPO, stdin=subprocess.DEVNULL, stdout=out, stderr=out,
                                env={**os.environ, "ANSIBLE_NOCOLOR": "1"}, start_new_session=True)
    try:
        yield play, said
    finally:
        if play.poll() is None:
            os.killpg(play.pid, signal.SIGKILL)
            play.wait()


def until_said(said: Path, words: str, play: subprocess.Popen[bytes]) -> None:
    """Wait until a play has printed words."""
    while words not in said.read_text():
        assert play.poll() is None, said.read_text()
        time.sleep(0.1)


def runner_of(way: Way) -> str:
    """Return pid and start of the build's runner, as its record on the box names them."""
    found = way.lab.inside(way.box, "sh", "-c", f"cat '{ROOT}'/jobs/env-cpu-*/job.json").stdout
    record = json.loads(found)
    return f"{record['pid']} {record['started_at']}"


def test_a_dropped_connection_leaves_the_build_going_and_the_play_finds_back(
    way: Way, tmp_path: Path, wheelhouse: Path
) -> None:
    lock = lock_of(wheelhouse, tmp_path)
    with playing(way, tmp_path / "play", wheelhouse, lock) as (play, said):
        until_said(said, "self-test: importing every package", play)
        before = runner_of(way)
        assert way.cut() >= 1
        assert play.wait() == 0, said.read_text()
    assert runner_of(way) == before
    assert "is complete: 4 packages" in said.read_text()


def test_a_new_play_attaches_to_the_build_of_one_that_is_gone(way: Way, tmp_path: Path, wheelhouse: Path) -> None:
    lock = lock_of(wheelhouse, tmp_path, remark="another environment")
    way.lab.inside(way.box, "rm", "-rf", f"{ROOT}/jobs")
    with playing(way, tmp_path / "first", wheelhouse, lock) as (play, said):
        until_said(said, "self-test: importing every package", play)
        before = runner_of(way)
        os.killpg(play.pid, signal.SIGKILL)
        play.wait()
        way.cut()
    with playing(way, tmp_path / "second", wheelhouse, lock) as (play, said):
        assert play.wait() == 0, said.read_text()
    assert runner_of(way) == before
    assert "attached to env-cpu-" in said.read_text()
    assert "is complete: 4 packages" in said.read_text()
