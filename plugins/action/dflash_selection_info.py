"""Name the release from the controller's checkout; the module names the environment from the lockfile."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ansible.plugins.loader import action_loader

action_loader.get("dflash_base", class_only=True)

from dflash_controller import checkout
from dflash_controller.box_action import BoxAction
from dflash_ops.core.errors import OpsError


class ActionModule(BoxAction):
    """Action plugin with one remote call."""

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        """Run the module with the contents of the lockfile and the name of the release."""
        result: dict[str, Any] = super().run(tmp, task_vars)
        arguments = dict(self._task.args)
        lock = Path(arguments["lock_file"]).expanduser().resolve()
        arguments["lock"], arguments["lock_name"] = lock.read_text(), lock.name
        try:
            arguments["release_id"] = checkout.release_id(
                self.repo,
                str(arguments.get("version") or "HEAD"),
                allow_dirty=bool(arguments.get("allow_dirty")),
            )
        except OpsError as error:
            return {**result, "failed": True, "msg": str(error)}
        return {**result, **self._execute_module(module_args=arguments, task_vars=task_vars)}
