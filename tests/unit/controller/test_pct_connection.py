"""The connection plugin refuses invalid options before it starts ssh."""
from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

REPO = Path(__file__).resolve().parents[3]
os.environ.setdefault("ANSIBLE_CONFIG", str(REPO / "ansible.cfg"))

from ansible.errors import AnsibleError, AnsibleFileNotFound  # noqa: E402
from ansible.playbook.play_context import PlayContext  # noqa: E402
from ansible.plugins.connection import ConnectionBase  # noqa: E402
from ansible.plugins.loader import connection_loader, init_plugin_loader  # noqa: E402

init_plugin_loader()


@pytest.fixture
def calls(tmp_path: Path) -> Path:
    """Log file of the stand-in ssh of `connect`: one line for each start."""
    return tmp_path / "calls"


@pytest.fixture
def connect(tmp_path: Path, calls: Path) -> Callable[..., ConnectionBase]:
    """Return a function that opens a connection with a stand-in ssh, which only logs its start and fails."""
    ssh = tmp_path / "ssh"
    ssh.write_text(f"#!/bin/sh\necho called >> {calls}\nexit 255\n", encoding="utf-8")
    ssh.chmod(0o755)

    def open_connection(**options: Any) -> ConnectionBase:
        context = PlayContext()
        context.remote_addr = "192.0.2.1"
        connection = connection_loader.get("pct", context)
        own = {"inventory_hostname": "box", "ansible_host": "192.0.2.1", "pct_vmid": 200}
        paths = {"ansible_ssh_executable": str(ssh), "ansible_control_path_dir": str(tmp_path)}
        connection.set_options(var_options={**own, **paths, **options})
        return connection

    return open_connection


@pytest.mark.parametrize(
    "use",
    [
        lambda connection: connection.exec_command("true"),
        lambda connection: connection.put_file("/etc/hostname", "/root/x"),
        lambda connection: connection.fetch_file("/etc/hostname", "/nowhere/x"),
        lambda connection: connection.reset(),
    ],
    ids=["exec", "put", "fetch", "reset"],
)
def test_an_invalid_vmid_is_refused_before_any_login(
    connect: Callable[..., ConnectionBase], calls: Path, use: Callable[[Any], object]
) -> None:
    with pytest.raises(AnsibleError, match=r"pct_vmid = 'two hundred' is not a container ID\. Remedy: "):
        use(connect(pct_vmid="two hundred"))
    assert not calls.exists()


def test_an_unknown_method_is_refused_before_any_login(connect: Callable[..., ConnectionBase], calls: Path) -> None:
    with pytest.raises(AnsibleError, match="Invalid value 'nsenter' for config 'pct_method'"):
        connect(pct_method="nsenter").exec_command("true")
    assert not calls.exists()


def test_a_missing_source_is_refused_before_any_login(
    connect: Callable[..., ConnectionBase], calls: Path, tmp_path: Path
) -> None:
    for source in (tmp_path / "nothing", tmp_path):
        with pytest.raises(AnsibleFileNotFound, match=f"{source} is not a file on the controller"):
            connect().put_file(str(source), "/root/x")
    assert not calls.exists()


def test_an_ssh_that_fails_without_output_is_reported(connect: Callable[..., ConnectionBase], calls: Path) -> None:
    message = r"Could not enter container 200 on 192\.0\.2\.1: exit status 255, no message \(the host does not answer\)"
    with pytest.raises(AnsibleError, match=message):
        connect().exec_command("true")
    assert calls.exists()
