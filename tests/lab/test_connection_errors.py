"""Errors of the connection: wrong options, refused logins, and containers that are stopped, frozen or locked."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from ansible.errors import AnsibleConnectionFailure, AnsibleError
from connection_helpers import METHODS
from dflash_lab import host
from dflash_lab.lab import Lab


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"pct_vmid": 999}, "has no container 999.*pct list"),
        ({"pct_vmid": 999, "pct_method": "lxc-attach"}, "has no container 999"),
        ({"pct_vmid": 999, "pct_method": "lxc-attach", "ansible_user": "operator", "pct_sudo": True}, "no container 9"),
        ({"pct_executable": "/opt/pct"}, "/opt/pct does not exist on 127.0.0.1.*pct_executable"),
        ({"ansible_port": 1}, "No ssh connection to 127.0.0.1: .*refused.*Remedy"),
        ({"ansible_host": "no-such-host.invalid"}, "host name no-such-host.invalid cannot be resolved"),
        ({"ansible_user": "operator"}, "is not root.*pct_sudo"),
        ({"ansible_user": "somebody"}, "refused the ssh login.*somebody@127.0.0.1"),
    ],
)
def test_each_failure_has_its_own_message(lab: Lab, connect: Any, options: dict[str, Any], message: str) -> None:
    with pytest.raises(AnsibleConnectionFailure, match=message):
        connect(**options).exec_command("true")


@pytest.mark.parametrize("vmid", ["abc", "12", "200; id", "-200", ""])
def test_an_invalid_vmid_is_refused_before_any_login(lab: Lab, connect: Any, vmid: str) -> None:
    logins = lab.logins()
    with pytest.raises(AnsibleError, match=r"pct_vmid = .*Remedy"):
        connect(pct_vmid=vmid, ansible_ssh_args="").exec_command("true")
    assert lab.logins() == logins


def test_an_unknown_host_key_is_refused_by_default(lab: Lab, connect: Any) -> None:
    message = "host key of 127.0.0.1 is unknown or has changed.*ssh-keyscan"
    with pytest.raises(AnsibleConnectionFailure, match=message):
        connect(ansible_ssh_common_args="-o UserKnownHostsFile=/dev/null -o ControlPath=none").exec_command("true")


@pytest.mark.parametrize("method", METHODS)
def test_a_stopped_container_is_reported(lab: Lab, connect: Any, method: str) -> None:
    lab.pct("stop", "201")
    try:
        with pytest.raises(AnsibleConnectionFailure, match=r"Container 201 on 127.0.0.1 is not running.*pct start 201"):
            connect(pct_vmid=201, pct_method=method).exec_command("true")
    finally:
        lab.pct("start", "201")
        lab.wait_ready(201)


def test_a_frozen_container_times_out(lab: Lab, connect: Any) -> None:
    lab.pct("set", "201", "--lock", "backup")
    host.run_on_host(lab.layout, "lxc-freeze", "-n", "201")
    started = time.monotonic()
    try:
        with pytest.raises(AnsibleConnectionFailure, match=r"did not answer within 2 s .*lock: backup.*pct_timeout"):
            connect(pct_vmid=201, pct_timeout=2, ansible_ssh_timeout=1).exec_command("true")
        assert time.monotonic() - started < 60
    finally:
        host.run_on_host(lab.layout, "lxc-unfreeze", "-n", "201")
        lab.pct("unlock", "201")


def test_a_container_that_stops_during_a_command_is_reported(lab: Lab, connect: Any) -> None:
    connection = connect(pct_vmid=201)
    connection.exec_command("true")
    threading.Timer(1, lab.pct, ("stop", "201")).start()
    started = time.monotonic()
    message = r"Container 201 .*not running|was lost while a command was running.*stopped"
    with pytest.raises(AnsibleConnectionFailure, match=message):
        connection.exec_command("sleep 120")
    assert time.monotonic() - started < 60
    with pytest.raises(AnsibleConnectionFailure, match="not running"):
        connection.exec_command("true")
    lab.pct("start", "201")
    lab.wait_ready(201)
    assert connection.exec_command("echo back") == (0, b"back\n", b"")


def test_the_reboot_module_works(lab: Lab, play: Any) -> None:
    done = play("""
- reboot: {reboot_timeout: 90, post_reboot_delay: 1, test_command: hostname}
- command: cat /proc/uptime
""", pct_vmid=201)
    assert done.returncode == 0, done.stdout
    lab.wait_ready(201)


def test_a_locked_container_still_runs_commands(lab: Lab, connect: Any) -> None:
    """A backup in snapshot mode keeps the lock for hours, while training and playbooks must keep working."""
    lab.pct("set", "201", "--lock", "backup")
    try:
        assert connect(pct_vmid=201).exec_command("echo yes") == (0, b"yes\n", b"")
        assert "CT is locked (backup)" in lab.pct("stop", "201", check=False).stderr
    finally:
        lab.pct("unlock", "201")


def test_a_dead_shared_login_times_out(
    connect: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = {"ansible_control_path_dir": str(tmp_path), "pct_timeout": 2, "ansible_ssh_timeout": 1}
    connection = connect(**options)
    monkeypatch.setattr(sys.modules[type(connection).__module__], "STATE_TIMEOUT_S", 6)
    connection.exec_command("true")
    connection.close()
    master = master_of(tmp_path)
    os.kill(master, signal.SIGSTOP)
    try:
        with pytest.raises(AnsibleConnectionFailure, match=r"did not answer within 2 s \(the host does not answer\)"):
            connect(**options).exec_command("true")
    finally:
        os.kill(master, signal.SIGKILL)


def master_of(folder: Path) -> int:
    """Return the pid of the ControlMaster whose socket is in a folder."""
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and f"{folder}/".encode() in (entry / "cmdline").read_bytes():
            return int(entry.name)
    raise AssertionError("no ControlMaster found")


def test_retries_wait_for_a_starting_container(lab: Lab, connect: Any) -> None:
    lab.pct("stop", "201")
    threading.Timer(1.5, lab.pct, ("start", "201")).start()
    found = connect(pct_vmid=201, ansible_ssh_retries=6).exec_command("echo up")
    assert found == (0, b"up\n", b"")
    lab.wait_ready(201)
