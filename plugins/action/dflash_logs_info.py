"""Print the last lines of a run's log; with `follow`, also the lines written in that time."""

from __future__ import annotations

import time
from typing import Any

from ansible.plugins.loader import action_loader

action_loader.get("dflash_base", class_only=True)

from dflash_controller import screens
from dflash_controller.info_action import InfoAction
from dflash_ops.core import durations

# Seconds that one call waits on the box for a new line.
POLL_SECONDS = 5.0


class ActionModule(InfoAction):
    """Read the log once, then poll for new lines until the time is over."""

    render = staticmethod(screens.logs_screen)

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        """Return the newest result, with at most 1000 lines."""
        result: dict[str, Any] = super().run(tmp, task_vars)
        deadline = time.monotonic() + durations.parse(self._task.args.get("follow") or 0)
        while not result.get("failed") and "offset" in result.get("answer", {}) and time.monotonic() < deadline:
            wait = max(0.2, min(POLL_SECONDS, deadline - time.monotonic()))
            newer = self.call_module(task_vars or {}, offset=result["answer"]["offset"], wait=wait)
            if "offset" not in newer.get("answer", {}):
                continue
            for line in newer["answer"]["lines"]:
                self.display(line)
            lines = [*result["answer"]["lines"], *newer["answer"]["lines"]]
            result["answer"] = {**newer["answer"], "lines": lines[-1000:]}
        return result
