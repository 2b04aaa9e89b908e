"""Launch a run, and drop the note that no run is training after a stop."""

from __future__ import annotations

from typing import Any

from ansible.plugins.loader import action_loader

action_loader.get("dflash_base", class_only=True)

from dflash_controller.box_action import ModuleAction


class ActionModule(ModuleAction):
    """Action plugin with one remote call."""

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        """Run the module of the same name."""
        result: dict[str, Any] = super().run(tmp, task_vars)
        if result.get("launched"):
            self.clear_exit_message(task_vars or {})
        return result
