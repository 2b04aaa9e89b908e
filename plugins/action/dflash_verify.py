"""Asks for the audit of a run, prints it, writes the JSON object, and fails when something is not as recorded."""

from __future__ import annotations

from typing import Any

from ansible.plugins.loader import action_loader

action_loader.get("dflash_base", class_only=True)

from dflash_controller import screens
from dflash_controller.info_action import InfoAction


class ActionModule(InfoAction):
    """One look; a difference is a failure, after everything was shown and written."""

    render = staticmethod(screens.verify_screen)

    def judge(self, result: dict[str, Any]) -> dict[str, Any]:
        """Return the audit; `failed` when it found something."""
        summary = result.get("answer", {}).get("summary")
        if summary and not result.get("failed"):
            result.update(failed=True, msg=summary)
        told: dict[str, Any] = super().judge(result)
        return told
