"""Fixtures of the lab's tests: one running lab, and connections to its containers as the controller opens them.

DFLASH_LAB_KEEP=1 keeps the built root file systems for the next run.
"""
from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

REPO = Path(__file__).resolve().parents[2]
os.environ.setdefault("ANSIBLE_CONFIG", str(REPO / "ansible.cfg"))
os.environ["ANSIBLE_SSH_CONTROL_PATH_DIR"] = os.environ.get("DFLASH_LAB_CONTROL", "/tmp/dflash-lab-cp")
sys.path[:0] = [str(REPO / folder) for folder in ("plugins/module_utils", "plugins/plugin_utils", "tests/lab")]

from ansible.playbook.play_context import PlayContext  # noqa: E402
from ansible.plugins.connection import ConnectionBase  # noqa: E402
from ansible.plugins.loader import connection_loader, init_plugin_loader  # noqa: E402
from dflash_lab.lab import Lab  # noqa: E402
from dflash_lab.layout import layout_from_environment  # noqa: E402

init_plugin_loader()
Connect = Callable[..., ConnectionBase]


@pytest.fixture(scope="session")
def lab() -> Iterator[Lab]:
    """A host with containers 200 (unprivileged) and 201 (privileged), always removed at the end."""
    lab = Lab(layout_from_environment())
    try:
        lab.up(gpu_count=2)
        yield lab
    finally:
        close_logins(Path(os.environ["ANSIBLE_SSH_CONTROL_PATH_DIR"]))
        (lab.down if os.environ.get("DFLASH_LAB_KEEP") else lab.purge)()


def close_logins(folder: Path) -> None:
    """End the ControlMasters that tests left in the background, and with them the open connections to containers."""
    for socket in folder.glob("[!p]*"):
        subprocess.run(["ssh", "-o", f"ControlPath={socket}", "-O", "exit", "lab"], capture_output=True, check=False)
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
def login(lab: Lab) -> dict[str, Any]:
    """Inventory variables for container 200 of the lab."""
    return login_variables(lab)


def login_variables(lab: Lab) -> dict[str, Any]:
    """Return connection variables for container 200."""
    return {
        "ansible_connection": "pct",
        "ansible_host": "127.0.0.1",
        "ansible_port": lab.layout.port,
        "ansible_user": "root",
        "ansible_ssh_private_key_file": str(lab.layout.key),
        "ansible_ssh_common_args": f"-o UserKnownHostsFile={lab.layout.known_hosts} -o IdentitiesOnly=yes",
        "pct_vmid": 200,
    }


@pytest.fixture
def connect(login: dict[str, Any]) -> Iterator[Connect]:
    """Open connections through Ansible's loader; the default is container 200 as root."""
    opened: list[ConnectionBase] = []

    def open_connection(**options: Any) -> ConnectionBase:
        variables = login | options
        context = PlayContext()
        context.remote_addr = variables["ansible_host"]
        connection = connection_loader.get("pct", context)
        connection.set_options(var_options={"pct_persist": 0, "inventory_hostname": "trainer"} | variables)
        opened.append(connection)
        return connection

    yield open_connection
    for connection in opened:
        connection.close()


@pytest.fixture
def play(tmp_path: Path, login: dict[str, Any]) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Run a play, given as the text of its tasks, on container 200, or on `hosts` with their own variables."""
    import json

    def run(tasks: str, *arguments: str, env: dict[str, str] | None = None,
            hosts: dict[str, dict[str, Any]] | None = None, **variables: Any) -> Any:
        named = hosts or {"trainer": {}}
        inventory = {"all": {"hosts": {name: login | variables | own for name, own in named.items()}}}
        (tmp_path / "inventory.json").write_text(json.dumps(inventory), encoding="utf-8")
        lines = "".join(f"    {line}\n" for line in tasks.strip("\n").splitlines())
        text = f"- hosts: all\n  gather_facts: false\n  tasks:\n{lines}"
        (tmp_path / "play.yml").write_text(text, encoding="utf-8")
        command = [str(Path(sys.executable).with_name("ansible-playbook")), "-i", str(tmp_path / "inventory.json"),
                   str(tmp_path / "play.yml"), *arguments]
        return subprocess.run(command, cwd=REPO, capture_output=True, text=True, check=False,
                              env={**os.environ, "ANSIBLE_NOCOLOR": "1", **(env or {})})

    return run
