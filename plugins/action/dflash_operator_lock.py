"""Says who the running playbook is, and whether a holder of this very controller still lives."""

from __future__ import annotations

import os
from typing import Any

from ansible.plugins.loader import action_loader

action_loader.get("dflash_base", class_only=True)

from dflash_controller.box_action import BoxAction
from dflash_ops.core import operator_lock


class ActionModule(BoxAction):
    """One remote call; a second one when the holder was a playbook of this machine that died."""

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        """Take or give back the box."""
        result: dict[str, Any] = super().run(tmp, task_vars)
        arguments = dict(self._task.args)
        operation = str(arguments.get("operation") or "")
        # Tasks run in a fork of the playbook's process, which is the one that lives as long as the playbook.
        arguments["holder"] = operator_lock.holder_of(os.getppid(), operation=operation).as_dict()
        arguments["holder"].pop("token")
        told = self.call_module(arguments, task_vars)
        held = told.get("held_by")
        if held and operator_lock.is_dead_locally(held):
            told = self.call_module({**arguments, "dead_token": held["token"]}, task_vars)
        if told.get("taken_over"):
            self.display(f"  the box was held by {told['taken_over']}, which is gone; taken over")
        if told.get("held_by"):
            told["held_by"] = {name: value for name, value in told["held_by"].items() if name != "token"}
        return {**result, **told}

    def call_module(self, arguments: dict[str, Any], task_vars: dict[str, Any] | None) -> dict[str, Any]:
        """Call the module."""
        name = "dflash_operator_lock"
        return dict(self._execute_module(module_name=name, module_args=arguments, task_vars=task_vars))
