"""Run commands on this machine, with their output in the error message of a failure."""
from __future__ import annotations

import os
import subprocess
from collections.abc import Sequence
from pathlib import Path


class LabError(Exception):
    """A command of the lab failed; the message has the command and its last lines of output."""


def run(
    *command: str | Path,
    check: bool = True,
    stdin: str | None = None,
    env: dict[str, str] | None = None,
    timeout: float | None = 900,
) -> subprocess.CompletedProcess[str]:
    """Run a command.

    Raises:
        LabError: the command failed and `check` is set.
    """
    arguments: Sequence[str] = [str(argument) for argument in command]
    done = subprocess.run(
        arguments,
        input=stdin,
        stdin=subprocess.DEVNULL if stdin is None else None,
        capture_output=True,
        text=True,
        errors="replace",
        check=False,
        timeout=timeout,
        env={**os.environ, **(env or {})},
    )
    if check and done.returncode != 0:
        tail = "\n".join((done.stdout + done.stderr).strip().splitlines()[-15:])
        raise LabError(f"rc {done.returncode}: {' '.join(arguments)}\n{tail}")
    return done
