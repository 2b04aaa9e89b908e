"""Judges the container's words on the controller, so that one message names them all before any host is reached."""
from __future__ import annotations

import dataclasses
from typing import Any

import yaml
from ansible.plugins.loader import action_loader
from ansible.utils.vars import load_extra_vars

action_loader.get("dflash_base", class_only=True)

from dflash_controller import container_ids, extra_vars, inventory
from dflash_controller.action_base import DflashAction
from dflash_ops.core.errors import OpsError

PREFIX = "gpu_container_"


class ActionModule(DflashAction):
    """Runs the module of the same name, unless a variable would not be read or names another container than the box."""

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        """Refuse a slip of the keyboard and a contradiction; else run the module."""
        result: dict[str, Any] = super().run(tmp, task_vars)
        variables = task_vars or {}
        typed = [name for name in load_extra_vars(self._loader) if name.startswith(PREFIX)]
        found = inventory.way_problems(self._connection.transport)
        found += extra_vars.unknown(typed, variables, specified(), (PREFIX,))
        arguments = dict(self._task.args)
        try:
            arguments["vmid"] = self.number(variables)
        except OpsError as error:
            found.append(str(error))
        if found:
            return {**result, "failed": True, "msg": "\n".join(["Nothing was changed.", *found])}
        result.update(self._execute_module(module_args=arguments, task_vars=variables))
        return {**result, "vmid": arguments["vmid"]}

    def number(self, variables: dict[str, Any]) -> object:
        """Return the container's number: what the role was given, else that of the box behind this host."""
        name = variables["inventory_hostname"]
        host = next(one for one in self.proxmox_hosts(variables) if one.name == name)
        asked = dataclasses.replace(host, number=self._task.args.get("vmid"))
        return container_ids.meant(asked, self.boxes_behind(variables))


def specified() -> set[str]:
    """Return the role's variables."""
    file = DflashAction.repo / "roles/gpu_container/meta/argument_specs.yml"
    return {*yaml.safe_load(file.read_text(encoding="utf-8"))["argument_specs"]["main"]["options"]}
