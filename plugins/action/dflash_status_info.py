"""Print the status of a run; with `watch`, follow it until the health check passes or fails."""

from __future__ import annotations

import time
from typing import Any

from ansible.plugins.loader import action_loader

action_loader.get("dflash_base", class_only=True)

from dflash_controller import screens
from dflash_controller.info_action import InfoAction
from dflash_ops.monitor import news

# Seconds that one call waits on the box for news, and the pause before a lost connection is retried.
POLL_SECONDS = 5.0
RECONNECT_PAUSE = 5.0

KEEPS_RUNNING = "the run keeps running on the box: playbooks/status.yml shows its state, playbooks/stop.yml stops it"


class ActionModule(InfoAction):
    """Read once, or with `watch` repeatedly until the run is healthy or has failed."""

    def read(self, task_vars: dict[str, Any]) -> dict[str, Any]:
        """Return the newest result."""
        if not self._task.args.get("watch"):
            return super().read(task_vars)
        with self.note_if_interrupted(task_vars, KEEPS_RUNNING):
            return self.watch(task_vars)

    def screen(self, result: dict[str, Any]) -> list[str]:
        """Return the panel of a health check, or the status screen."""
        if "judgement" in result:
            return screens.health_panel(result["answer"], result["judgement"], result.get("comparison"))
        return super().screen(result)

    def watch(self, task_vars: dict[str, Any]) -> dict[str, Any]:
        """Follow the run with live lines until its health check passes or fails."""
        started = time.monotonic()
        timeout = float(self._task.args.get("timeout") or 7200)
        before: dict[str, Any] = {}
        last_key = ""
        while True:
            result = self.call_module(task_vars, news_key=last_key, wait=0.0 if not last_key else POLL_SECONDS)
            answer = result["answer"]
            judgement = result.get("judgement") or {"state": "unknown", "over": False, "ok": False}
            elapsed = time.monotonic() - started
            for line in news.lines(before, answer):
                self.line(task_vars, elapsed, line)
            if answer["state"] == "unknown":
                self.line(task_vars, elapsed, f"{answer['detail']}; the run continues without a connection; retrying")
                time.sleep(RECONNECT_PAUSE)
            else:
                before, last_key = answer, result.get("news_key") or ""
            if judgement["over"] or elapsed > timeout:
                return self.final_result(result, judgement, elapsed)

    def final_result(self, result: dict[str, Any], judgement: dict[str, Any], elapsed: float) -> dict[str, Any]:
        """Return the result; failed, with the judgement and its remedy, when the health check did not pass."""
        if judgement["ok"]:
            return result
        name = judgement["state"] if judgement["over"] else "late"
        text = judgement.get("message") or f"the health check did not pass in {elapsed:.0f} s"
        remedies = [item["remedy"] for item in result["answer"].get("problems") or () if item.get("remedy")]
        remedy = f" Remedy: {remedies[0]}" if remedies else ""
        result.pop("connection_error", None)
        return {**result, "failed": True, "msg": f"{name}: {text}.{remedy}"}

    def line(self, task_vars: dict[str, Any], elapsed: float, text: str) -> None:
        """Print one live line: box, elapsed seconds, text."""
        self.print_line(task_vars, f"{elapsed:6.1f} s | {text}")
