"""Print the audit of a run, write it as JSON, and fail when it found a problem."""

from __future__ import annotations

from typing import Any

from ansible.plugins.loader import action_loader

action_loader.get("dflash_base", class_only=True)

from dflash_controller import screens
from dflash_controller.info_action import InfoAction


class ActionModule(InfoAction):
    """One module call; a problem fails the task after everything was printed and written."""

    render = staticmethod(screens.verify_screen)

    def judge(self, result: dict[str, Any]) -> dict[str, Any]:
        """Return the result; failed when the audit found a problem."""
        summary = result.get("answer", {}).get("summary")
        if summary and not result.get("failed"):
            result.update(failed=True, msg=summary)
        judged: dict[str, Any] = super().judge(result)
        return judged
