"""Ansible's default output, with failures of this project printed once. See DOCUMENTATION."""

from __future__ import annotations

DOCUMENTATION = r"""
name: dflash
type: stdout
short_description: Print a failure of this project once, line by line, with its remedy
description:
  - Ansible's default output, except for a failed task of this project and an unreachable box. Ansible prints such a
    failure as an error with its location in the playbook, and again as the task's result in YAML. This callback prints
    its message once, in plain lines.
  - Unexpected errors (a module that crashed), and everything with C(-v), are printed as Ansible prints them.
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
    """Default output with a shorter form of a failed task: its error and its result."""

    CALLBACK_VERSION = 2.0
    CALLBACK_TYPE = "stdout"
    CALLBACK_NAME = "dflash"

    def __init__(self) -> None:
        """End the playbook when its output is closed (`| head`) or cannot be written; Ansible would wait forever.

        Handle SIGTERM like Ctrl-C, with the same messages; by default Ansible prints none.
        """
        super().__init__()
        output_guard.OutputGuard(sys.stdout, sys.stderr)
        signal.signal(signal.SIGTERM, as_interrupt)
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)
        os.register_at_fork(after_in_child=ignore_closed_pipes)

    def _handle_exception(self, result: MutableMapping[str, Any], use_stderr: bool = False) -> None:
        """Omit the error when the result contains its message."""
        if self._is_expected(result):
            result.pop("exception", None)
        super()._handle_exception(result, use_stderr)

    def _dump_results(self, result: MutableMapping[str, Any], *args: Any, **options: Any) -> str:
        """Return an expected failure as plain lines instead of YAML."""
        if self._is_expected(result):
            return failure_lines(result)
        return str(super()._dump_results(result, *args, **options))

    def _is_expected(self, result: MutableMapping[str, Any]) -> bool:
        """Return true for an unreachable box, and for a failure that one of our tasks reported itself."""
        task_result = self._current_task_result
        if self._display.verbosity or not task_result:
            return False
        if result.get("unreachable"):
            return "msg" in result
        if not task_result.exception:
            return False
        crashed = re.match(r"Task failed: (?!Action failed: )", str(result.get("msg")))
        ours = str(task_result.task.action).startswith("dflash_") and "msg" in result and "module_stdout" not in result
        return ours and not crashed


def as_interrupt(_number: int, frame: FrameType | None) -> None:
    """Handle a signal like Ctrl-C: Ansible ends its workers and reports the interruption."""
    interrupt = signal.getsignal(signal.SIGINT)
    if not callable(interrupt):
        raise KeyboardInterrupt
    interrupt(signal.SIGINT, frame)


def ignore_closed_pipes() -> None:
    """Ignore SIGPIPE in Ansible's workers, where a closed pipe must be an error of the task."""
    with contextlib.suppress(ValueError):  # not in the main thread
        signal.signal(signal.SIGPIPE, signal.SIG_IGN)


def failure_lines(result: MutableMapping[str, Any]) -> str:
    """Return the lines of the message, with each remedy on a separate line, and the end of a job's log."""
    text = str(result["msg"]).removeprefix("Task failed: ").replace(" Remedy: ", "\nRemedy: ")
    lines = [*text.splitlines(), *(f"  {line}" for line in result.get("log_tail") or ())]
    return "".join(f"\n  {line}" for line in lines)
