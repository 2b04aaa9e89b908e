"""Print a registered text in the format of the other screens.

    - name: Print the result
      dflash_print:
        text: "{{ __result.message }}"

A string is printed line by line, a list as a panel.
"""

from __future__ import annotations

from typing import Any

from ansible.plugins.loader import action_loader

action_loader.get("dflash_base", class_only=True)

from dflash_controller.action_base import DflashAction


class ActionModule(DflashAction):
    """Print on the controller, without a connection to the box."""

    _requires_connection = False

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        """Print the argument `text`."""
        result: dict[str, Any] = super().run(tmp, task_vars)
        text = self._task.args["text"]
        if isinstance(text, str):
            for line in text.splitlines():
                self.print_line(task_vars or {}, line)
        else:
            self.print_screen(task_vars or {}, text)
        return {**result, "changed": False}
