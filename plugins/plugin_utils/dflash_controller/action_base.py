"""Base class of every action plugin: check mode, printed lines, and ssh errors with a remedy."""
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
# what Ansible's ssh connection puts before the words of ssh
PREFIX = re.compile(r"^(Failed to connect to the host via ssh|Data could not be sent to remote host .* over ssh): ")
# a command for people to type next, and the words of this one that it needs as well
HINT = re.compile(r"\.venv/bin/ansible-playbook(?= \S+\.yml)")
BOX_NAMES = ("dflash_root", "dflash_workspace")
PLAYBOOK = os.getpid()  # Ansible loads its plugins before it forks


@atexit.register
def tell_what_goes_on() -> None:
    """Say what an interrupted playbook was following, below Ansible's `User interrupted execution`."""
    if os.getpid() == PLAYBOOK:
        for line in exit_messages.pending(Path(constants.DEFAULT_LOCAL_TMP)):
            Display().display(line, stderr=True)


def shortest(path: str) -> str:
    """Return a path as one would type it here."""
    return min((path, os.path.relpath(path)), key=len) if path.startswith("/") else path


class DflashAction(ActionBase):
    """Knows the checkout it came from, who is in the inventory, how a box's words are printed, and ssh's own words."""

    TRANSFERS_FILES = False
    _supports_check_mode = True
    _supports_async = False
    repo = REPO

    def _low_level_execute_command(self, *args: Any, **options: Any) -> dict[str, Any]:
        """Run something there; ssh's own words become a cause and a remedy, as the connection pct tells them."""
        try:
            return dict(super()._low_level_execute_command(*args, **options))
        except AnsibleConnectionFailure as error:
            told = self.told(str(error.message)) if self._connection.transport == "ssh" else None
            if told is None:
                raise
            raise AnsibleConnectionFailure(told) from None

    def told(self, text: str) -> str | None:
        """Return what ssh's words mean; None when they are not known."""
        host, user = (self._connection.get_option(name) for name in ("host", "remote_user"))
        return pct_errors.explain_login(PREFIX.sub("", text), host=str(host), user=user or "")

    def following(self, task_vars: Mapping[str, Any], text: str) -> contextlib.AbstractContextManager[None]:
        """Follow what needs no playbook: when this one is interrupted inside, that is told in these words."""
        line = f"  {task_vars['inventory_hostname']} | {text}"
        return exit_messages.while_inside(Path(constants.DEFAULT_LOCAL_TMP), line)

    def keep_for_the_end(self, task_vars: Mapping[str, Any], text: str) -> None:
        """Say a line when this playbook ends, however it does, unless it is dropped before."""
        line = self.named(f"  {task_vars['inventory_hostname']} | {text}")
        exit_messages.set_for_box(Path(constants.DEFAULT_LOCAL_TMP), task_vars["inventory_hostname"], line)

    def drop_for_the_end(self, task_vars: Mapping[str, Any]) -> None:
        """Say no such line about this box."""
        exit_messages.clear_for_box(Path(constants.DEFAULT_LOCAL_TMP), task_vars["inventory_hostname"])

    def say(self, task_vars: Mapping[str, Any], text: str) -> None:
        """Print one line of this box."""
        self.show(f"  {task_vars['inventory_hostname']} | {text}")

    def panel(self, task_vars: Mapping[str, Any], lines: Sequence[str]) -> None:
        """Print a screen under the box's name."""
        if lines:
            self.show("\n".join([f"{task_vars['inventory_hostname']}:", *lines]))

    def show(self, text: str) -> None:
        """Print, whole also when Ctrl-C comes at this moment; a command names the box as it was named here."""
        with exit_messages.signals_blocked():
            Display().display(self.named(text))

    def named(self, text: str) -> str:
        """Return a text whose commands name the box as it was named here."""
        return HINT.sub(lambda found: shlex.join([found.group(), *self.box_words()]), text)

    def box_words(self) -> list[str]:
        """Return what was typed to say which box: the inventory, and where things lie on it."""
        given = [str(one) for one in context.CLIARGS.get("inventory") or ()]
        typed = load_extra_vars(self._loader)
        words = [] if given == constants.DEFAULT_HOST_LIST else [w for one in given for w in ("-i", shortest(one))]
        for name in BOX_NAMES:
            words += ["-e", f"{name}={shlex.quote(str(typed[name]))}"] if name in typed else []
        return words

    def proxmox_hosts(self, task_vars: Mapping[str, Any]) -> list[InventoryHost]:
        """Return the Proxmox hosts of the inventory, each with the container that it names."""
        inventory = task_vars["hostvars"]
        hosts = group("proxmox_hosts", task_vars)
        return [inventory_host(name, inventory[name], "gpu_container_vmid") for name in hosts]

    def boxes_behind(self, task_vars: Mapping[str, Any]) -> list[InventoryHost]:
        """Return the boxes that are reached through a Proxmox host, each with its container."""
        inventory = task_vars["hostvars"]
        boxes = group("trainers", task_vars)
        through_pct = [name for name in boxes if read(inventory[name], "ansible_connection") == "pct"]
        return [inventory_host(name, inventory[name], "pct_vmid") for name in through_pct]


def group(name: str, task_vars: Mapping[str, Any]) -> list[str]:
    return list(task_vars["groups"].get(name, ()))


def inventory_host(name: str, variables: Mapping[str, Any], variable: str) -> InventoryHost:
    """Return one host of the inventory."""
    host = read(variables, "ansible_host", "ansible_ssh_host") or name
    port = read(variables, "ansible_port", "ansible_ssh_port") or 22
    return InventoryHost(name, (str(host), str(port)), read(variables, variable))


def read(variables: Mapping[str, Any], *names: str) -> Any:
    """Return the first of some variables that says something; what cannot be read here counts as not written."""
    for name in names:
        try:
            if variables.get(name):
                return variables[name]
        except AnsibleError:
            continue
    return None
