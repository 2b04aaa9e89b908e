"""Ansible's usual output, in which a refusal of this project is told once. See DOCUMENTATION."""

from __future__ import annotations

DOCUMENTATION = r"""
name: dflash
type: stdout
short_description: Tell a refusal once, line by line, with its remedy
description:
  - Ansible's default output, except for a failure of one of this project's own tasks. Ansible tells that as an error
    with the place in the playbook, and once more as the task's result in YAML. Here it is one message in plain lines,
    and so is a box that could not be reached.
  - With C(-v), and for what is no refusal (a module that broke off), everything is as Ansible has it.
extends_documentation_fragment:
  - default_callback
  - result_format_callback
"""

import contextlib
import os
import re
import signal
import sys
from collections.abc import MutableMapping
from pathlib import Path
from types import FrameType
from typing import Any

from ansible.plugins.callback.default import CallbackModule as Default

_PLUGINS = Path(__file__).resolve().parents[1]
sys.path += [str(_PLUGINS / folder) for folder in ("module_utils", "plugin_utils")]

from dflash_controller import output_guard


class CallbackModule(Default):  # type: ignore[misc]
    """The default output but for two parts of a failed task: the error above it, and its result."""

    CALLBACK_VERSION = 2.0
    CALLBACK_TYPE = "stdout"
    CALLBACK_NAME = "dflash"

    def __init__(self) -> None:
        """End with whoever reads the output (`| head`), or when it cannot be written: Ansible would wait for ever.

        SIGTERM ends a playbook as Ctrl-C does, with the same words: Ansible's own way says nothing.
        """
        super().__init__()
        output_guard.Guard(sys.stdout, sys.stderr)
        signal.signal(signal.SIGTERM, as_interrupt)
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)
        os.register_at_fork(after_in_child=ignore_closed_pipes)

    def _handle_exception(self, result: MutableMapping[str, Any], use_stderr: bool = False) -> None:
        """Leave out the error whose message the result has."""
        if self._refuses(result):
            result.pop("exception", None)
        super()._handle_exception(result, use_stderr)

    def _dump_results(self, result: MutableMapping[str, Any], *args: Any, **options: Any) -> str:
        """Return a refusal's own lines instead of YAML."""
        return refusal(result) if self._refuses(result) else str(super()._dump_results(result, *args, **options))

    def _refuses(self, result: MutableMapping[str, Any]) -> bool:
        told = self._current_task_result
        if self._display.verbosity or not told:
            return False
        if result.get("unreachable"):
            return "msg" in result
        if not told.exception:
            return False
        broke_off = re.match(r"Task failed: (?!Action failed: )", str(result.get("msg")))
        ours = str(told.task.action).startswith("dflash_") and "msg" in result and "module_stdout" not in result
        return ours and not broke_off


def as_interrupt(_number: int, frame: FrameType | None) -> None:
    """Do what Ansible does at Ctrl-C: its workers end too, then the playbook says so."""
    interrupt = signal.getsignal(signal.SIGINT)
    if not callable(interrupt):
        raise KeyboardInterrupt
    interrupt(signal.SIGINT, frame)


def ignore_closed_pipes() -> None:
    """In Ansible's workers a pipe that closed is an error of its task."""
    with contextlib.suppress(ValueError):  # not in the main thread
        signal.signal(signal.SIGPIPE, signal.SIG_IGN)


def refusal(result: MutableMapping[str, Any]) -> str:
    """Return the message's own lines, each remedy on one of its own, and the end of a job's log if there is one."""
    text = str(result["msg"]).removeprefix("Task failed: ").replace(" Remedy: ", "\nRemedy: ")
    lines = [*text.splitlines(), *(f"  {line}" for line in result.get("log_tail") or ())]
    return "".join(f"\n  {line}" for line in lines)
