"""Prints a part of a run's log, and follows it for a while when asked to."""

from __future__ import annotations

import time
from typing import Any

from ansible.plugins.loader import action_loader

action_loader.get("dflash_base", class_only=True)

from dflash_controller import screens
from dflash_controller.info_action import InfoAction
from dflash_ops.core import durations

LOOK_SECONDS = 5.0


class ActionModule(InfoAction):
    """One look, then new lines as they come until the time is over."""

    render = staticmethod(screens.logs_screen)

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        """Return the last answer."""
        result: dict[str, Any] = super().run(tmp, task_vars)
        deadline = time.monotonic() + durations.parse(self._task.args.get("follow") or 0)
        while not result.get("failed") and "offset" in result.get("answer", {}) and time.monotonic() < deadline:
            wait = max(0.2, min(LOOK_SECONDS, deadline - time.monotonic()))
            told = self.call_module(task_vars or {}, offset=result["answer"]["offset"], wait=wait)
            if "offset" not in told.get("answer", {}):
                continue
            for line in told["answer"]["lines"]:
                self.display(line)
            lines = [*result["answer"]["lines"], *told["answer"]["lines"]]
            result["answer"] = {**told["answer"], "lines": lines[-1000:]}
        return result
