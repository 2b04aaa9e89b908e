"""Entry points of test jobs. The tests copy this file into the package of the runner."""
from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from .core.errors import OpsError
from .core.jobs import Progress


def count(arguments: dict[str, Any], progress: Progress) -> dict[str, Any]:
    """Print a line every `pause` seconds, `total` times."""
    for number in range(1, arguments["total"] + 1):
        progress.say(f"part {number}", done=number, total=arguments["total"])
        time.sleep(arguments.get("pause", 0.05))
    return {"counted": arguments["total"]}


def fail(arguments: dict[str, Any], progress: Progress) -> dict[str, Any]:
    """Fail with a remedy."""
    raise OpsError("the wheel is broken", remedy="use another one", facts={"wheel": "x.whl"})


def crash(arguments: dict[str, Any], progress: Progress) -> dict[str, Any]:
    """Fail with an unexpected exception."""
    return {"value": 1 // 0}


def spawn(arguments: dict[str, Any], progress: Progress) -> dict[str, Any]:
    """Start a child in its own session, which survives a killed runner, and wait for it."""
    script = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(600)"
    child = subprocess.Popen([sys.executable, "-c", script], start_new_session=True)
    Path(arguments["pid_file"]).write_text(str(child.pid))
    progress.say("child started")
    return {"rc": child.wait()}


def echo(arguments: dict[str, Any], progress: Progress) -> dict[str, Any]:
    """Return the arguments of the job."""
    return dict(arguments)


def persist(arguments: dict[str, Any], progress: Progress) -> dict[str, Any]:
    """Continue after every exception."""
    while True:
        try:
            progress.say("sleeping")
            time.sleep(600)
        except Exception as error:
            progress.say(f"continuing after {error!r}")
