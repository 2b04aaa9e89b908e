"""Prints what a task registered as every screen here is printed: a line of a text as one of its box, a list as a panel.

    - name: Say what happened
      dflash_print:
        text: "{{ __result.said }}"
"""

from __future__ import annotations

from typing import Any

from ansible.plugins.loader import action_loader

action_loader.get("dflash_base", class_only=True)

from dflash_controller.action_base import DflashAction


class ActionModule(DflashAction):
    """No remote call, and nothing changes."""

    _requires_connection = False

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        """Print the argument `text`: sentences on lines of their own, or a list for a panel."""
        result: dict[str, Any] = super().run(tmp, task_vars)
        text = self._task.args["text"]
        if isinstance(text, str):
            for line in text.splitlines():
                self.print_line(task_vars or {}, line)
        else:
            self.print_screen(task_vars or {}, text)
        return {**result, "changed": False}
