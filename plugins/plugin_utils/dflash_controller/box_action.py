"""Base classes of the action plugins whose module works on the box."""

from __future__ import annotations

from typing import Any

from dflash_controller.action_base import DflashAction

# Module argument -> variable that fills it in. The last one is a fact, set while a playbook holds the operator lock.
VARIABLES = {"root": "dflash_root", "workspace": "dflash_workspace", "lock_token": "dflash_lock_token"}


class BoxAction(DflashAction):
    """Fill in `root`, `workspace` and `lock_token` where the task leaves them out."""

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        """Complete the task's arguments and return the empty result that a subclass adds to."""
        result: dict[str, Any] = super().run(tmp, task_vars)
        for argument, variable in VARIABLES.items():
            if argument not in self._task.args and variable in (task_vars or {}):
                self._task.args[argument] = self._templar.resolve_variable_expression(variable)
        return result


class ModuleAction(BoxAction):
    """Call the module of the same name once."""

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        """Return the module's result."""
        result: dict[str, Any] = super().run(tmp, task_vars)
        result.update(self._execute_module(module_args=dict(self._task.args), task_vars=task_vars))
        return result
