"""Print the report of a run and write it as JSON."""

from __future__ import annotations

from typing import Any

from ansible.plugins.loader import action_loader

action_loader.get("dflash_base", class_only=True)

from dflash_controller import screens
from dflash_controller.info_action import InfoAction


class ActionModule(InfoAction):
    """One module call, whose screen is also returned as Markdown."""

    render = staticmethod(screens.report_markdown)

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        """Return the module's result with `markdown`, the lines of the report."""
        result: dict[str, Any] = super().run(tmp, task_vars)
        if "answer" in result:
            result["markdown"] = self.screen(result)
        return result
