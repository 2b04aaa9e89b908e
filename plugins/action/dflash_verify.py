"""Asks for the audit of a run, prints it, writes the JSON object, and fails when something is not as recorded."""

from __future__ import annotations

from typing import Any

from ansible.plugins.loader import action_loader

DflashStatus: Any = action_loader.get("dflash_status", class_only=True)


class ActionModule(DflashStatus):  # type: ignore[misc]
    """One look; a difference is a failure, after everything was shown and written."""

    def judge(self, result: dict[str, Any]) -> dict[str, Any]:
        """Return the audit; `failed` when it found something."""
        summary = result.get("answer", {}).get("summary")
        if summary and not result.get("failed"):
            result.update(failed=True, msg=summary)
        told: dict[str, Any] = super().judge(result)
        return told
