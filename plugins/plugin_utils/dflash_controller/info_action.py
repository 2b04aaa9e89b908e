"""Base class of the action plugins that only read: call the module, print the screen, write the JSON object.

    class ActionModule(InfoAction):
        "Print the runs of a box."

        render = staticmethod(screens.runs_screen)
"""

from __future__ import annotations

import fcntl
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from ansible.errors import AnsibleConnectionFailure
from ansible.module_utils.parsing.convert_bool import boolean
from dflash_ops.monitor import rules, status

from dflash_controller import screens
from dflash_controller.box_action import BoxAction

# A failed result does not repeat what the screen already shows.
SHOWN = ("answer", "judgement", "comparison", "news_key")


class InfoAction(BoxAction):
    """Call the module once and show its answer; an unreachable box is an answer too."""

    render: Callable[[Mapping[str, Any]], list[str]] = staticmethod(screens.status_screen)

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        """Return the module's result with `answer`, after showing and writing it."""
        result: dict[str, Any] = super().run(tmp, task_vars)
        variables = task_vars or {}
        result.update(self.read(variables))
        if "answer" in result:
            if not result.get("unreachable"):  # Ansible itself reports that, once
                self.panel(variables, self.screen(result))
            self.write_json(variables, result["answer"])
        return self.judge(result)

    def read(self, task_vars: dict[str, Any]) -> dict[str, Any]:
        """Return the module's result with its exit code applied."""
        return self.exit_code(self.ask(task_vars))

    def screen(self, result: dict[str, Any]) -> list[str]:
        """Return the lines to print for a result."""
        answer = result["answer"]
        if "run_id" not in answer and answer.get("state") == "unknown":
            return screens.status_screen(answer)
        return self.render(answer)


    def exit_code(self, result: dict[str, Any]) -> dict[str, Any]:
        """Let a box that could not be asked end the playbook with 4, and where `strict` a run in trouble with 2."""
        no_way, answer = result.pop("no_way", ""), result.get("answer", {})
        asked = self._task.args.get("strict")
        if no_way and (asked is None or boolean(asked)):
            return {**result, "unreachable": True, "msg": no_way}
        if boolean(asked or False) and answer.get("state") in rules.NEEDS_ACTION and not result.get("failed"):
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
            return {**told, "answer": status.unknown(reason, remedy)}
        return dict(told)

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
    return {"changed": False, "no_way": reason, "answer": answer}
