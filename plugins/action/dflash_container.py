"""Validate the container's variables on the controller, so that one message names all problems before any host."""

from __future__ import annotations

import dataclasses
from typing import Any

import yaml
from ansible.plugins.loader import action_loader
from ansible.utils.vars import load_extra_vars

action_loader.get("dflash_base", class_only=True)

from dflash_controller import command_line, inventory_validation, vmid
from dflash_controller.action_base import DflashAction
from dflash_ops.core.errors import OpsError

PREFIX = "gpu_container_"


class ActionModule(DflashAction):
    """Validate the variables, resolve the container ID, then run the module."""

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        """Return the module's result with `vmid`, or a failure that names every problem."""
        result: dict[str, Any] = super().run(tmp, task_vars)
        variables = task_vars or {}
        typed = [name for name in load_extra_vars(self._loader) if name.startswith(PREFIX)]
        problems = inventory_validation.transport_problems(self._connection.transport)
        problems += command_line.unknown(typed, variables, role_variables(), (PREFIX,))
        arguments = dict(self._task.args)
        try:
            arguments["vmid"] = self.resolve_vmid(variables)
        except OpsError as error:
            problems.append(str(error))
        if problems:
            return {**result, "failed": True, "msg": "\n".join(["Nothing was changed.", *problems])}
        result.update(self._execute_module(module_args=arguments, task_vars=variables))
        return {**result, "vmid": arguments["vmid"]}

    def resolve_vmid(self, variables: dict[str, Any]) -> object:
        """Return the container ID: the role's variable, or that of the box behind this host."""
        name = variables["inventory_hostname"]
        host = next(host for host in self.proxmox_hosts(variables) if host.name == name)
        host = dataclasses.replace(host, vmid=self._task.args.get("vmid"))
        return vmid.resolve_vmid(host, self.boxes_behind(variables))


def role_variables() -> set[str]:
    """Return the names of the role's variables."""
    file = DflashAction.repo / "roles/gpu_container/meta/argument_specs.yml"
    return {*yaml.safe_load(file.read_text(encoding="utf-8"))["argument_specs"]["main"]["options"]}
