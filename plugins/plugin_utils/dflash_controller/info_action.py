"""Base class of action plugins that only read: call the module, print its answer, write a JSON object.

A subclass sets `render` to a function that returns the lines to print for an answer.
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

# Return values that the screen already shows, removed from a failed result.
SHOWN = ("answer", "judgement", "comparison", "news_key")


class InfoAction(BoxAction):
    """Call the module once and print its answer, which may be that the box is unreachable."""

    render: Callable[[Mapping[str, Any]], list[str]] = staticmethod(screens.status_screen)

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        """Return the module's result, after printing and writing its `answer`."""
        result: dict[str, Any] = super().run(tmp, task_vars)
        variables = task_vars or {}
        result.update(self.read(variables))
        if "answer" in result:
            if not result.get("unreachable"):  # reported by Ansible itself
                self.print_screen(variables, self.screen(result))
            self.write_json(variables, result["answer"])
        return self.without_shown(result)

    def read(self, task_vars: dict[str, Any]) -> dict[str, Any]:
        """Return the module's result with `strict` applied."""
        return self.apply_strict(self.call_module(task_vars))

    def screen(self, result: dict[str, Any]) -> list[str]:
        """Return the lines to print for a result."""
        answer = result["answer"]
        if "run_id" not in answer and answer.get("state") == "unknown":
            return screens.status_screen(answer)
        return self.render(answer)

    def apply_strict(self, result: dict[str, Any]) -> dict[str, Any]:
        """End the playbook with rc 4 for an unreachable box, and with `strict` with rc 2 for a run in trouble."""
        connection_error, answer = result.pop("connection_error", ""), result.get("answer", {})
        strict = self._task.args.get("strict")
        if connection_error and (strict is None or boolean(strict)):
            return {**result, "unreachable": True, "msg": connection_error}
        if boolean(strict or False) and answer.get("state") in rules.NEEDS_ACTION and not result.get("failed"):
            problem = f"run {answer['run_id']} is {answer['state']}" if answer["run_id"] else answer["detail"]
            return {**result, "failed": True, "msg": problem}
        return result

    def without_shown(self, result: dict[str, Any]) -> dict[str, Any]:
        """Return the result; for a failure without the values that were already printed and written."""
        if not (result.get("failed") or result.get("unreachable")):
            return result
        return {name: value for name, value in result.items() if name not in SHOWN}

    def call_module(self, task_vars: dict[str, Any], **extra: Any) -> dict[str, Any]:
        """Call the module once; without a connection the answer is `unknown`."""
        arguments = {**self._task.args, **extra}
        try:
            result = self._execute_module(module_name=self._task.action, module_args=arguments, task_vars=task_vars)
        except AnsibleConnectionFailure as error:
            return unknown(str(error.message))
        if result.get("unreachable"):
            return unknown(str(result.get("msg")))
        if result.get("failed") and "answer" not in result:
            reason, _, remedy = str(result.get("msg")).partition(" Remedy: ")
            return {**result, "answer": status.unknown(reason, remedy)}
        return dict(result)

    def write_json(self, task_vars: dict[str, Any], answer: dict[str, Any]) -> None:
        """Write one JSON object per line: for this box, next to the objects of the play's other boxes."""
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
    """Return the box of a line in the JSON file."""
    try:
        return str(json.loads(line)["box"])
    except (ValueError, KeyError, TypeError):
        return ""


def unknown(reason: str) -> dict[str, Any]:
    """Return the answer for a box without a connection, with the reason."""
    cause, _, remedy = reason.partition(" Remedy: ")
    answer = status.unknown(f"no connection: {cause}", remedy or "reach the box first")
    return {"changed": False, "connection_error": reason, "answer": answer}
