"""Asks a box, prints the screen, writes the JSON object; a box that cannot be reached is an answer too.

Other plugins that only read are three lines over this one:

    class ActionModule(action_loader.get("dflash_status", class_only=True)):
        "Ask for what dflash_runs knows."
"""

from __future__ import annotations

import fcntl
import json
import time
from pathlib import Path
from typing import Any

from ansible.errors import AnsibleConnectionFailure
from ansible.module_utils.parsing.convert_bool import boolean
from ansible.plugins.loader import action_loader

DflashAction: Any = action_loader.get("dflash_action", class_only=True)

from dflash_ops import life, screens, status

# Seconds that one look waits on the box for news, and the pause before a lost connection is tried again.
LOOK_SECONDS = 5.0
RECONNECT_PAUSE = 5.0

GOES_ON = "the run goes on on the box: playbooks/status.yml shows how it stands, playbooks/stop.yml ends it"

# What a failure does not repeat below the screen.
SHOWN = ("answer", "judgement", "panel", "screen", "seen")


class ActionModule(DflashAction):  # type: ignore[misc]
    """Ask once; or with `watch` again and again until the run has proved itself or failed."""

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        """Return the module's result with `answer`, after showing and writing it."""
        result: dict[str, Any] = super().run(tmp, task_vars)
        variables = task_vars or {}
        if self._task.args.get("watch"):
            with self.following(variables, GOES_ON):
                result.update(self.watch(variables))
        else:
            result.update(self.ask(variables))
            result = self.exit_code(result)
        if "answer" in result:
            if not result.get("unreachable"):  # Ansible itself tells that, once
                self.panel(variables, result.get("panel") or result.get("screen") or [])
            self.write_json(variables, result["answer"])
        return self.judge(result)

    def exit_code(self, result: dict[str, Any]) -> dict[str, Any]:
        """Let a box that could not be asked end the playbook with 4, and where `strict` a run in trouble with 2."""
        no_way, answer = result.pop("no_way", ""), result.get("answer", {})
        asked = self._task.args.get("strict")
        if no_way and (asked is None or boolean(asked)):
            return {**result, "unreachable": True, "msg": no_way}
        if boolean(asked or False) and answer.get("state") in status.TROUBLE and not result.get("failed"):
            what = f"run {answer['run_id']} is {answer['state']}" if answer["run_id"] else answer["detail"]
            return {**result, "failed": True, "msg": what}
        return result

    def judge(self, result: dict[str, Any]) -> dict[str, Any]:
        """Return the result; of a failure the message only, since all else was shown and written already."""
        if not (result.get("failed") or result.get("unreachable")):
            return result
        return {name: value for name, value in result.items() if name not in SHOWN}

    def ask(self, task_vars: dict[str, Any], **more: Any) -> dict[str, Any]:
        """Call the module once; no connection becomes the answer `unknown`."""
        arguments = {**self._task.args, **more}
        try:
            told = self._execute_module(module_name=self._task.action, module_args=arguments, task_vars=task_vars)
        except AnsibleConnectionFailure as error:
            return unknown(str(error.message))
        if told.get("unreachable"):
            return unknown(str(told.get("msg")))
        if told.get("failed") and "answer" not in told:
            reason, _, remedy = str(told.get("msg")).partition(" Remedy: ")
            return {**told, "answer": status.unknown(reason, remedy), "screen": []}
        return dict(told)

    def watch(self, task_vars: dict[str, Any]) -> dict[str, Any]:
        """Follow the run with live lines; fail by name when it does not prove itself."""
        started = time.monotonic()
        within = float(self._task.args.get("within") or 7200)
        before: dict[str, Any] = {}
        seen = ""
        while True:
            told = self.ask(task_vars, seen=seen, wait=0.0 if not seen else LOOK_SECONDS)
            answer, judged = told["answer"], told.get("judgement") or {"state": "unknown", "over": False, "ok": False}
            elapsed = time.monotonic() - started
            for line in life.news(before, answer):
                self.line(task_vars, elapsed, line)
            if answer["state"] == "unknown":
                self.line(task_vars, elapsed, f"{answer['detail']}; the run needs no connection, trying again")
                time.sleep(RECONNECT_PAUSE)
            else:
                before, seen = answer, told.get("seen") or ""
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
        told.pop("no_way", None)
        return {**told, "failed": True, "msg": f"{name}: {text}.{remedy}"}

    def line(self, task_vars: dict[str, Any], elapsed: float, text: str) -> None:
        """Print one live line: box, seconds, what."""
        self.say(task_vars, f"{elapsed:6.1f} s | {text}")

    def write_json(self, task_vars: dict[str, Any], answer: dict[str, Any]) -> None:
        """Write one JSON object a line: this box's own, beside those of the play's other boxes."""
        if not self._task.args.get("json_out"):
            return
        box = str(task_vars.get("inventory_hostname"))
        others = {str(name) for name in task_vars.get("ansible_play_hosts_all") or ()} - {box}
        target = Path(str(self._task.args["json_out"])).expanduser()
        target.parent.mkdir(parents=True, exist_ok=True)
        with target.open("a+", encoding="utf-8") as stream:
            fcntl.flock(stream, fcntl.LOCK_EX)
            stream.seek(0)
            kept = [line for line in stream.read().splitlines() if box_of(line) in others]
            stream.seek(0)
            stream.truncate()
            stream.write("".join(f"{line}\n" for line in [*kept, json.dumps({"box": box, **answer})]))


def box_of(line: str) -> str:
    """Return the box a line of an earlier answer is about."""
    try:
        return str(json.loads(line)["box"])
    except (ValueError, KeyError, TypeError):
        return ""


def unknown(reason: str) -> dict[str, Any]:
    """Return the answer about a box that could not be asked, and why."""
    cause, _, remedy = reason.partition(" Remedy: ")
    answer = status.unknown(f"no connection: {cause}", remedy or "reach the box first")
    return {"changed": False, "no_way": reason, "answer": answer, "screen": screens.status_screen(answer)}
