"""Result of an audit."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dflash_ops.history import verify

from dflash_controller.screens.text import BAD, GOOD, problem_lines, rows


def verify_screen(answer: Mapping[str, Any]) -> list[str]:
    """Return one line for each check, then the process and the problems."""
    lines = [f"{GOOD if answer['ok'] else BAD} run {answer['run_id']} ({answer['state']})"]
    lines += [check_line(name, result, str(answer["state"])) for name, result in answer["checks"].items()]
    if answer["pid"]:
        lines += rows([("pid", str(answer["pid"])), ("python", answer["python"]), ("torch", answer["torch"])])
    return lines + problem_lines(answer["problems"])


def check_line(name: str, result: str, state: str) -> str:
    """Return the line of one check; an ended run has no process to check."""
    if result == verify.NO_PROCESS:
        return f"  ○ {name}: none, the run is {state}"
    if result != "ok":
        return f"  {BAD} {name}: {result}"
    return f"  {GOOD} {name}: " + {"log": "no known failure", "state": state}.get(name, "as recorded")
