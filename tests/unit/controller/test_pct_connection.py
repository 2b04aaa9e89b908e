"""What the connection refuses by itself: no ssh is started for it."""
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
    """A file to which the ssh of `connect` writes that it was started."""
    return tmp_path / "calls"


@pytest.fixture
def connect(tmp_path: Path, calls: Path) -> Callable[..., ConnectionBase]:
    ssh = tmp_path / "ssh"
    ssh.write_text(f"#!/bin/sh\necho called >> {calls}\nexit 255\n", encoding="utf-8")
    ssh.chmod(0o755)

    def open_one(**options: Any) -> ConnectionBase:
        context = PlayContext()
        context.remote_addr = "192.0.2.1"
        connection = connection_loader.get("pct", context)
        own = {"inventory_hostname": "box", "ansible_host": "192.0.2.1", "pct_vmid": 200}
        places = {"ansible_ssh_executable": str(ssh), "ansible_control_path_dir": str(tmp_path)}
        connection.set_options(var_options={**own, **places, **options})
        return connection

    return open_one


@pytest.mark.parametrize(
    "act",
    [
        lambda way: way.exec_command("true"),
        lambda way: way.put_file("/etc/hostname", "/root/x"),
        lambda way: way.fetch_file("/etc/hostname", "/nowhere/x"),
        lambda way: way.reset(),
    ],
    ids=["exec", "put", "fetch", "reset"],
)
def test_an_odd_number_is_refused_before_any_login(
    connect: Callable[..., ConnectionBase], calls: Path, act: Callable[[Any], object]
) -> None:
    with pytest.raises(AnsibleError, match=r"pct_vmid = 'two hundred' is no container number\. Remedy: "):
        act(connect(pct_vmid="two hundred"))
    assert not calls.exists()


def test_an_unknown_method_is_refused_before_any_login(connect: Callable[..., ConnectionBase], calls: Path) -> None:
    with pytest.raises(AnsibleError, match="Invalid value 'nsenter' for config 'pct_method'"):
        connect(pct_method="nsenter").exec_command("true")
    assert not calls.exists()


def test_a_source_that_is_not_there_is_refused_before_any_login(
    connect: Callable[..., ConnectionBase], calls: Path, tmp_path: Path
) -> None:
    for source in (tmp_path / "nothing", tmp_path):
        with pytest.raises(AnsibleFileNotFound, match=f"{source} is no file on the controller"):
            connect().put_file(str(source), "/root/x")
    assert not calls.exists()


def test_an_ssh_that_says_nothing_is_told_as_that(connect: Callable[..., ConnectionBase], calls: Path) -> None:
    words = r"Could not enter container 200 on 192\.0\.2\.1: exit status 255, no message \(the host does not answer\)"
    with pytest.raises(AnsibleError, match=words):
        connect().exec_command("true")
    assert calls.exists()
