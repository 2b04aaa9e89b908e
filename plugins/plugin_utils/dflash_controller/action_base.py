"""Base class of all action plugins: check mode, printed lines, and ssh errors with a remedy."""
from __future__ import annotations

import atexit
import contextlib
import os
import re
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ansible import constants, context
from ansible.errors import AnsibleConnectionFailure, AnsibleError
from ansible.plugins.action import ActionBase
from ansible.utils.display import Display
from ansible.utils.vars import load_extra_vars
from dflash_ops.proxmox import pct_errors

from dflash_controller import exit_messages
from dflash_controller.vmid import InventoryHost

REPO = Path(__file__).resolve().parents[3]
# Prefix that Ansible's ssh connection adds to the messages of ssh
PREFIX = re.compile(r"^(Failed to connect to the host via ssh|Data could not be sent to remote host .* over ssh): ")
# Commands in messages, to which the options of this box are added
COMMAND = re.compile(r"\.venv/bin/ansible-playbook(?= \S+\.yml)")
BOX_VARIABLES = ("dflash_root", "dflash_workspace")
PLAYBOOK = os.getpid()  # Ansible loads its plugins before it forks


@atexit.register
def print_exit_messages() -> None:
    """Print what keeps running after an interrupted playbook, below Ansible's `User interrupted execution`."""
    if os.getpid() == PLAYBOOK:
        for line in exit_messages.pending(Path(constants.DEFAULT_LOCAL_TMP)):
            Display().display(line, stderr=True)


def displayed_path(path: str) -> str:
    """Return a path below the current folder in its relative form, any other path unchanged."""
    relative = os.path.relpath(path)
    return path if relative.startswith("..") else relative


class DflashAction(ActionBase):
    """Shared behaviour: printing, ssh errors with a remedy, and the hosts of the inventory."""

    TRANSFERS_FILES = False
    _supports_check_mode = True
    _supports_async = False
    repo = REPO

    def _low_level_execute_command(self, *args: Any, **options: Any) -> dict[str, Any]:
        """Run a command; an ssh error is replaced by its cause and remedy, as in the connection pct."""
        try:
            return dict(super()._low_level_execute_command(*args, **options))
        except AnsibleConnectionFailure as error:
            ssh = self._connection.transport == "ssh"
            explanation = self.explain_ssh_error(str(error.message)) if ssh else None
            if explanation is None:
                raise
            raise AnsibleConnectionFailure(explanation) from None

    def explain_ssh_error(self, text: str) -> str | None:
        """Return the cause and remedy of an ssh message; None when it is unknown."""
        host, user = (self._connection.get_option(name) for name in ("host", "remote_user"))
        return pct_errors.explain_login(PREFIX.sub("", text), host=str(host), user=user or "")

    def note_if_interrupted(self, task_vars: Mapping[str, Any], text: str) -> contextlib.AbstractContextManager[None]:
        """Print `text` at the end if the playbook is interrupted inside this context."""
        line = f"  {task_vars['inventory_hostname']} | {text}"
        return exit_messages.while_inside(Path(constants.DEFAULT_LOCAL_TMP), line)

    def set_exit_message(self, task_vars: Mapping[str, Any], text: str) -> None:
        """Print a line about this box at the end of the playbook, even after a failure, unless it is cleared before."""
        line = self.with_box_options(f"  {task_vars['inventory_hostname']} | {text}")
        exit_messages.set_for_box(Path(constants.DEFAULT_LOCAL_TMP), task_vars["inventory_hostname"], line)

    def clear_exit_message(self, task_vars: Mapping[str, Any]) -> None:
        """Clear the line about this box."""
        exit_messages.clear_for_box(Path(constants.DEFAULT_LOCAL_TMP), task_vars["inventory_hostname"])

    def print_line(self, task_vars: Mapping[str, Any], text: str) -> None:
        """Print one line about this box."""
        self.display(f"  {task_vars['inventory_hostname']} | {text}")

    def print_screen(self, task_vars: Mapping[str, Any], lines: Sequence[str]) -> None:
        """Print lines below the name of this box."""
        if lines:
            self.display("\n".join([f"{task_vars['inventory_hostname']}:", *lines]))

    def display(self, text: str) -> None:
        """Print a text completely, even during Ctrl-C, with the options of this box added to its commands."""
        with exit_messages.signals_blocked():
            Display().display(self.with_box_options(text))

    def with_box_options(self, text: str) -> str:
        """Return a text with the options of this box added to its commands."""
        return COMMAND.sub(lambda found: shlex.join([found.group(), *self.box_options()]), text)

    def box_options(self) -> list[str]:
        """Return the options on this command line that select the box: the inventory and the folders on it."""
        inventories = [str(path) for path in context.CLIARGS.get("inventory") or ()]
        extra_vars = load_extra_vars(self._loader)
        options = []
        if inventories != constants.DEFAULT_HOST_LIST:
            options += [option for path in inventories for option in ("-i", displayed_path(path))]
        for name in BOX_VARIABLES:
            options += ["-e", f"{name}={shlex.quote(str(extra_vars[name]))}"] if name in extra_vars else []
        return options

    def proxmox_hosts(self, task_vars: Mapping[str, Any]) -> list[InventoryHost]:
        """Return the Proxmox hosts of the inventory with their containers."""
        inventory = task_vars["hostvars"]
        hosts = group("proxmox_hosts", task_vars)
        return [inventory_host(name, inventory[name], "gpu_container_vmid") for name in hosts]

    def boxes_behind(self, task_vars: Mapping[str, Any]) -> list[InventoryHost]:
        """Return the boxes behind a Proxmox host with their containers."""
        inventory = task_vars["hostvars"]
        boxes = group("trainers", task_vars)
        through_pct = [name for name in boxes if read(inventory[name], "ansible_connection") == "pct"]
        return [inventory_host(name, inventory[name], "pct_vmid") for name in through_pct]


def group(name: str, task_vars: Mapping[str, Any]) -> list[str]:
    """Return the hosts of an inventory group."""
    return list(task_vars["groups"].get(name, ()))


def inventory_host(name: str, variables: Mapping[str, Any], variable: str) -> InventoryHost:
    """Return one host of the inventory with its container."""
    host = read(variables, "ansible_host", "ansible_ssh_host") or name
    port = read(variables, "ansible_port", "ansible_ssh_port") or 22
    return InventoryHost(name, (str(host), str(port)), read(variables, variable))


def read(variables: Mapping[str, Any], *names: str) -> Any:
    """Return the first variable that is set; a variable that cannot be evaluated counts as not set."""
    for name in names:
        try:
            if variables.get(name):
                return variables[name]
        except AnsibleError:
            continue
    return None
