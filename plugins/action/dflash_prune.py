"""Print the paths that prune removes or keeps."""

from __future__ import annotations

from typing import Any

from ansible.plugins.loader import action_loader

action_loader.get("dflash_base", class_only=True)

from dflash_controller import screens
from dflash_controller.box_action import ModuleAction


class ActionModule(ModuleAction):
    """One module call, then the plan as a screen."""

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        """Return the module's result after printing its plan."""
        result: dict[str, Any] = super().run(tmp, task_vars)
        if "plan" in result:
            self.print_screen(task_vars or {}, screens.prune_screen(result["plan"], done=result["removed"]))
        return result
