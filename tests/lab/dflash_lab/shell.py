"""Commands of this machine, run with their output kept for the message of a failure."""
from __future__ import annotations

import os
import subprocess
from collections.abc import Sequence
from pathlib import Path


class LabError(Exception):
    """The lab could not do what was asked; the message shows the command and its last lines."""


def run(
    *command: str | Path,
    check: bool = True,
    stdin: str | None = None,
    env: dict[str, str] | None = None,
    timeout: float | None = 900,
) -> subprocess.CompletedProcess[str]:
    """Run a command; raise LabError with its output when it fails and `check` is set."""
    words: Sequence[str] = [str(word) for word in command]
    done = subprocess.run(
        words,
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
        raise LabError(f"rc {done.returncode}: {' '.join(words)}\n{tail}")
    return done
