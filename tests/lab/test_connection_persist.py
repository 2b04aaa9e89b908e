"""Calls of pct and logins per task, and the connection that stays open between tasks."""

from __future__ import annotations

import os
import signal
import threading
from pathlib import Path
from typing import Any

import pytest
from ansible.errors import AnsibleConnectionFailure
from conftest import close_logins
from connection_helpers import checksum, sockets, wait_until
from dflash_lab.lab import Lab

TASKS = """
- command: hostname
- copy: {content: "a secret\\n", dest: /root/counted, mode: "0600"}
- copy: {content: "a secret\\n", dest: /root/counted, mode: "0600"}
- template: {src: template.j2, dest: /root/counted2, mode: "0644"}
- script: ./script.sh
- command: "echo {{ item }}"
  loop: [1, 2, 3]
- fetch: {src: /root/counted, dest: fetched/, flat: true}
- command: id -un
  become: true
  become_user: nobody
  register: who
- assert: {that: who.stdout == 'nobody'}
"""


@pytest.mark.parametrize(("persist", "expected"), [(0, 8), (60, 1)])
def test_a_task_needs_at_most_one_pct_call_and_a_play_one_login(
    lab: Lab, play: Any, tmp_path: Path, persist: int, expected: int
) -> None:
    (tmp_path / "template.j2").write_text("{{ inventory_hostname }}\n", encoding="utf-8")
    (tmp_path / "script.sh").write_text("#!/bin/sh\necho hi\n", encoding="utf-8")
    calls, logins = len(lab.pct_calls()), lab.logins()
    done = play(TASKS, env={"ANSIBLE_SSH_CONTROL_PATH_DIR": str(tmp_path / "cp")}, pct_persist=persist)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "failed=0" in done.stdout
    assert len(lab.pct_calls()) - calls == expected
    assert lab.logins() - logins == 1
    close_logins(tmp_path / "cp")


def test_the_next_task_reuses_the_connection_and_an_idle_one_closes(lab: Lab, connect: Any, tmp_path: Path) -> None:
    options = {"pct_persist": 2, "ansible_control_path_dir": str(tmp_path)}
    seen = set()
    calls = len(lab.pct_calls())
    for _ in range(3):
        connection = connect(**options)
        seen.add(connection.exec_command("echo $PPID")[1])
        connection.close()
    assert len(seen) == 1
    assert len(lab.pct_calls()) - calls == 1
    agent = seen.pop().decode().strip()
    wait_until(lambda: not sockets(tmp_path))
    wait_until(lambda: lab.inside(200, "test", "-d", f"/proc/{agent}", check=False).returncode != 0)


def test_without_persist_no_connection_is_reused_or_kept(lab: Lab, connect: Any, tmp_path: Path) -> None:
    options = {"ansible_control_path_dir": str(tmp_path)}
    kept, own = connect(pct_persist=30, **options), connect(pct_persist=0, **options)
    agents = []
    for connection in (kept, own):
        agents.append(connection.exec_command("echo $PPID")[1].decode().strip())
        connection.close()
    assert agents[0] != agents[1]
    assert len(sockets(tmp_path)) == 1
    wait_until(lambda: lab.inside(200, "test", "-d", f"/proc/{agents[1]}", check=False).returncode != 0)
    assert connect(pct_persist=30, **options).exec_command("echo $PPID")[1].decode().strip() == agents[0]


def test_simultaneous_tasks_share_the_first_login(lab: Lab, connect: Any, tmp_path: Path) -> None:
    logins = lab.logins()
    found: list[tuple[int, bytes, bytes]] = []
    connections = [connect(ansible_control_path_dir=str(tmp_path)) for _ in range(4)]
    tasks = [threading.Thread(target=lambda c=c: found.append(c.exec_command("echo in"))) for c in connections]
    for task in tasks:
        task.start()
    for task in tasks:
        task.join()
    assert found == [(0, b"in\n", b"")] * 4
    assert lab.logins() - logins == 1
    assert not list(tmp_path.glob("*.first"))


def test_simultaneous_tasks_do_not_share_a_channel(connect: Any, tmp_path: Path) -> None:
    options = {"pct_persist": 5, "ansible_control_path_dir": str(tmp_path)}
    first, second = connect(**options), connect(**options)
    first.exec_command("true")
    first.close()
    first = connect(**options)
    agents = [connection.exec_command("echo $PPID")[1] for connection in (first, second)]
    assert agents[0] != agents[1]


def test_an_open_connection_is_reused_only_for_the_same_login(connect: Any, tmp_path: Path) -> None:
    options = {"pct_persist": 30, "ansible_control_path_dir": str(tmp_path)}
    connection = connect(**options)
    connection.exec_command("true")
    connection.close()
    assert len(sockets(tmp_path)) == 1
    with pytest.raises(AnsibleConnectionFailure, match="is not root"):
        connect(ansible_user="operator", **options).exec_command("true")


def test_a_connection_is_not_reused_after_its_task_died(lab: Lab, connect: Any, tmp_path: Path) -> None:
    options = {"pct_persist": 30, "ansible_control_path_dir": str(tmp_path)}
    connection = connect(**options)
    connection.exec_command("true")
    connection.close()
    child = os.fork()
    if child == 0:
        connect(**options).exec_command("touch /run/started; sleep 300")
        os._exit(0)
    wait_until(lambda: lab.inside(200, "test", "-e", "/run/started", check=False).returncode == 0)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    wait_until(lambda: not sockets(tmp_path))
    assert connect(**options).exec_command("echo clean") == (0, b"clean\n", b"")


def test_the_connection_of_a_restarted_container_is_not_reused(lab: Lab, connect: Any, tmp_path: Path) -> None:
    options = {"pct_persist": 60, "ansible_control_path_dir": str(tmp_path), "pct_vmid": 201}
    connection = connect(**options)
    connection.exec_command("true")
    connection.close()
    lab.pct("stop", "201")
    try:
        with pytest.raises(AnsibleConnectionFailure, match="is not running"):
            connect(**options).exec_command("true")
    finally:
        lab.pct("start", "201")
        lab.wait_ready(201)
    assert connect(**options).exec_command("echo new") == (0, b"new\n", b"")


def test_reset_closes_the_open_connection(connect: Any, tmp_path: Path) -> None:
    options = {"pct_persist": 60, "ansible_control_path_dir": str(tmp_path)}
    connection = connect(**options)
    before = connection.exec_command("echo $PPID")[1]
    connection.close()
    connect(**options).reset()
    wait_until(lambda: not sockets(tmp_path))
    assert connect(**options).exec_command("echo $PPID")[1] != before


def test_a_connection_that_ended_between_commands_is_opened_again(lab: Lab, connect: Any) -> None:
    connection = connect(pct_vmid=201)
    connection.exec_command("true")
    lab.pct("reboot", "201")
    wait_until(lambda: not connection._channel.usable())
    assert connection.exec_command("echo back") == (0, b"back\n", b"")
    lab.wait_ready(201)


def test_twelve_simultaneous_hosts_share_logins(lab: Lab, tmp_path: Path, play: Any) -> None:
    """Two containers on one host and twelve forks: sshd drops logins when ten arrive at once."""
    hosts = {f"box{number}": {"pct_vmid": 200 + number % 2} for number in range(12)}
    (tmp_path / "file").write_bytes(os.urandom(300_000))
    logins = lab.logins()
    done = play("""
- copy: {src: file, dest: "/root/{{ inventory_hostname }}", mode: "0644"}
- command: sha256sum /root/{{ inventory_hostname }}
  register: summed
- assert: {that: "summed.stdout.split()[0] == sum"}
- command: hostname
  register: who
- assert: {that: "who.stdout == 'ct' ~ pct_vmid"}
""", "--forks=12", hosts=hosts, env={"ANSIBLE_SSH_CONTROL_PATH_DIR": str(tmp_path / "cp")},
                sum=checksum(tmp_path / "file"))
    assert done.returncode == 0, done.stdout
    # sshd allows ten sessions per login (MaxSessions); further tasks log in separately
    assert lab.logins() - logins < 12
    close_logins(tmp_path / "cp")
