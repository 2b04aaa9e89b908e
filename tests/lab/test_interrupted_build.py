"""A build keeps running after a lost connection, by pct and by plain ssh: the play reconnects, a new one attaches."""
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

ROOT = "/opt/dflash interrupted"
SLOW = "import time\ntime.sleep(30)\n"  # imported by the self-test: leaves time to kill the connection


@pytest.fixture(scope="module")
def wheelhouse(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_wheelhouse(tmp_path_factory.mktemp("wheelhouse"), {"slow-start": {"slow_start.py": SLOW}})


@pytest.fixture(scope="module")
def node(lab: Lab) -> Lab:
    """The lab with its plain ssh node as well."""
    lab.create(NODE)
    lab.wait_ready(NODE)
    return lab


class Connection:
    """Connection to a box: its inventory variables, and a way to kill it. Owner: a test."""

    def __init__(self, lab: Lab, name: str) -> None:
        self.lab = lab
        self.box = {"pct": UNPRIVILEGED, "ssh": NODE}[name]
        self.variables = login_variables(lab)
        if name == "ssh":
            self.variables |= {"ansible_connection": "ssh", "ansible_host": address(NODE), "ansible_port": 22}

    def kill_logins(self) -> int:
        """Kill all logins of the connection's sshd; return their number."""
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
def connection(node: Lab, request: pytest.FixtureRequest) -> Connection:
    return Connection(node, request.param)


@contextmanager
def running_play(
    connection: Connection, folder: Path, wheelhouse: Path, lock: Path
) -> Iterator[tuple[subprocess.Popen[bytes], Path]]:
    """Run `relaunch.yml --tags env` in a separate session; yield its process and its output file."""
    variables: dict[str, Any] = {
        "dflash_root": ROOT, "dflash_workspace": "", "dflash_profile": "cpu", "python_env_lock_file": str(lock),
        "python_env_wheelhouse": str(wheelhouse), "python_env_index_urls": {"default": "none", "torch": "none"},
    }
    folder.mkdir()
    (folder / "group_vars").symlink_to(REPO / "group_vars")
    inventory = {"trainers": {"hosts": {"box": connection.variables | variables}}}
    (folder / "inventory.json").write_text(json.dumps(inventory), encoding="utf-8")
    command = [str(Path(sys.executable).with_name("ansible-playbook")), "relaunch.yml", "--tags", "env",
               "-i", str(folder / "inventory.json")]
    output = folder / "output"
    with output.open("wb") as out:
        play = subprocess.Popen(command, cwd=REPO, stdin=subprocess.DEVNULL, stdout=out, stderr=out,
                                env={**os.environ, "ANSIBLE_NOCOLOR": "1"}, start_new_session=True)
    try:
        yield play, output
    finally:
        if play.poll() is None:
            os.killpg(play.pid, signal.SIGKILL)
            play.wait()


def wait_for_output(output: Path, text: str, play: subprocess.Popen[bytes]) -> None:
    """Wait until a play has printed a text."""
    while text not in output.read_text():
        assert play.poll() is None, output.read_text()
        time.sleep(0.1)


def runner_of(connection: Connection) -> str:
    """Return pid and start time of the build's runner from its record on the box."""
    found = connection.lab.inside(connection.box, "sh", "-c", f"cat '{ROOT}'/jobs/env-cpu-*/job.json").stdout
    record = json.loads(found)
    return f"{record['pid']} {record['started_at']}"


def test_a_build_survives_a_lost_connection_and_the_play_reconnects(
    connection: Connection, tmp_path: Path, wheelhouse: Path
) -> None:
    lock = lock_of(wheelhouse, tmp_path)
    with running_play(connection, tmp_path / "play", wheelhouse, lock) as (play, output):
        wait_for_output(output, "self-test: importing every package", play)
        before = runner_of(connection)
        assert connection.kill_logins() >= 1
        assert play.wait() == 0, output.read_text()
    assert runner_of(connection) == before
    assert "is complete: 4 packages" in output.read_text()


def test_a_new_play_attaches_to_the_build_of_a_killed_one(
    connection: Connection, tmp_path: Path, wheelhouse: Path
) -> None:
    lock = lock_of(wheelhouse, tmp_path, remark="another environment")
    connection.lab.inside(connection.box, "rm", "-rf", f"{ROOT}/jobs")
    with running_play(connection, tmp_path / "first", wheelhouse, lock) as (play, output):
        wait_for_output(output, "self-test: importing every package", play)
        before = runner_of(connection)
        os.killpg(play.pid, signal.SIGKILL)
        play.wait()
        connection.kill_logins()
    with running_play(connection, tmp_path / "second", wheelhouse, lock) as (play, output):
        assert play.wait() == 0, output.read_text()
    assert runner_of(connection) == before
    assert "attached to env-cpu-" in output.read_text()
    assert "is complete: 4 packages" in output.read_text()
