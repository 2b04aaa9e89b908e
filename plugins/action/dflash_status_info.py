"""Print the status of a run; with `watch`, follow it until the health check passes or fails."""

from __future__ import annotations

import time
from typing import Any

from ansible.plugins.loader import action_loader

action_loader.get("dflash_base", class_only=True)

from dflash_controller import screens
from dflash_controller.info_action import InfoAction
from dflash_ops.monitor import health

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
        """Follow the run with live lines; fail by name when it does not prove itself."""
        started = time.monotonic()
        within = float(self._task.args.get("timeout") or 7200)
        before: dict[str, Any] = {}
        last_key = ""
        while True:
            told = self.call_module(task_vars, news_key=last_key, wait=0.0 if not last_key else POLL_SECONDS)
            answer, judged = told["answer"], told.get("judgement") or {"state": "unknown", "over": False, "ok": False}
            elapsed = time.monotonic() - started
            for line in health.news(before, answer):
                self.line(task_vars, elapsed, line)
            if answer["state"] == "unknown":
                self.line(task_vars, elapsed, f"{answer['detail']}; the run needs no connection, trying again")
                time.sleep(RECONNECT_PAUSE)
            else:
                before, last_key = answer, told.get("news_key") or ""
            if judged["over"] or elapsed > within:
                return self.verdict(told, judged, elapsed)

    def verdict(self, told: dict[str, Any], judged: dict[str, Any], elapsed: float) -> dict[str, Any]:
        """Return success, or a failure that says which of the named ends it was."""
        if judged["ok"]:
            return told
        name = judged["state"] if judged["over"] else "late"
        text = judged.get("message") or f"it did not prove itself in {elapsed:.0f} s"
        remedies = [item["remedy"] for item in told["answer"].get("problems") or () if item.get("remedy")]
        remedy = f" Remedy: {remedies[0]}" if remedies else ""
        told.pop("connection_error", None)
        return {**told, "failed": True, "msg": f"{name}: {text}.{remedy}"}

    def line(self, task_vars: dict[str, Any], elapsed: float, text: str) -> None:
        """Print one live line: box, seconds, what."""
        self.print_line(task_vars, f"{elapsed:6.1f} s | {text}")
