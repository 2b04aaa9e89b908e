"""Identify the running playbook to the operator lock, and check whether a holder on this controller is still alive."""

from __future__ import annotations

import os
from typing import Any

from ansible.plugins.loader import action_loader

action_loader.get("dflash_base", class_only=True)

from dflash_controller.box_action import BoxAction
from dflash_ops.core import operator_lock


class ActionModule(BoxAction):
    """Call the module once, and again when the holder was a playbook on this machine that died."""

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        """Acquire or release the operator lock."""
        result: dict[str, Any] = super().run(tmp, task_vars)
        arguments = dict(self._task.args)
        operation = str(arguments.get("operation") or "")
        # Tasks run in a fork of the playbook's process, which lives as long as the playbook.
        arguments["holder"] = operator_lock.holder_of(os.getppid(), operation=operation).as_dict()
        arguments["holder"].pop("token")
        answer = self.call_module(arguments, task_vars)
        holder = answer.get("held_by")
        if holder and operator_lock.is_dead_locally(holder):
            answer = self.call_module({**arguments, "dead_token": holder["token"]}, task_vars)
        if answer.get("taken_over"):
            self.display(f"  took over the operator lock of {answer['taken_over']}, which is dead")
        if answer.get("held_by"):
            answer["held_by"] = {name: value for name, value in answer["held_by"].items() if name != "token"}
        return {**result, **answer}

    def call_module(self, arguments: dict[str, Any], task_vars: dict[str, Any] | None) -> dict[str, Any]:
        """Call the module."""
        name = "dflash_operator_lock"
        return dict(self._execute_module(module_name=name, module_args=arguments, task_vars=task_vars))
