"""Notification hook: a command or webhook called when a run is dead, stalled, slow or finished."""

from __future__ import annotations

import json
import subprocess
import time
import urllib.request
from collections.abc import Mapping, Sequence
from typing import Any

from ..core import truncate
from ..core.errors import OpsError
from ..core.paths import Layout
from ..run import runs
from . import rules, status

PAUSE_SECONDS = 30.0
HOOK_SECONDS = 60.0


def check(notify: Mapping[str, Any]) -> dict[str, Any]:
    """Return the validated hook with its defaults; empty when none is configured.

    Raises:
        OpsError: unknown keys or events, or neither a command nor a URL.
    """
    if not notify:
        return {}
    unknown = sorted(set(notify) - {"command", "url", "events", "every_seconds"})
    events = list(notify.get("events") or rules.EVENTS)
    wrong = [event for event in events if event not in rules.EVENTS]
    if unknown or wrong or not (notify.get("command") or notify.get("url")):
        error = f"unknown keys {unknown}" if unknown else f"unknown events {wrong}" if wrong else "no command or url"
        raise OpsError(
            f"training_run_notify has {error}.",
            remedy=f"set command (a program) or url (a webhook), and events from {', '.join(rules.EVENTS)}",
        )
    return {
        "command": str(notify.get("command") or ""),
        "url": str(notify.get("url") or ""),
        "events": events,
        "every_seconds": float(notify.get("every_seconds") or PAUSE_SECONDS),
    }


def send(notify: Mapping[str, Any], event: str, answer: Mapping[str, Any]) -> str:
    """Call the hook with the event as JSON, on stdin or as the request body; return the error, empty on success."""
    keys = ("run_id", "state", "detail", "step", "loss", "tok_s", "log", "problems")
    body = json.dumps({"event": event, **{key: answer.get(key) for key in keys}}).encode()
    try:
        if notify.get("command"):
            done = subprocess.run(
                ["/bin/sh", "-c", str(notify["command"])],
                input=body,
                timeout=HOOK_SECONDS,
                check=False,
                capture_output=True,
            )
            if done.returncode != 0:
                stderr = truncate.shorten(done.stderr.decode(errors="replace"), 200)
                return f"the command exited with rc {done.returncode}: {stderr}"
        if notify.get("url"):
            request = urllib.request.Request(
                str(notify["url"]), data=body, headers={"Content-Type": "application/json"}
            )
            urllib.request.urlopen(request, timeout=HOOK_SECONDS).close()
    except (OSError, ValueError, subprocess.SubprocessError) as error:
        return f"{type(error).__name__}: {error}"
    return ""


def watch(layout: Layout, run: runs.Run, notify: Mapping[str, Any]) -> list[str]:
    """Poll the run until it ends and send each event once, when it begins; return the events sent."""
    sent: list[str] = []
    previous = ""
    while True:
        answer = status.snapshot(layout, run_id=run.run_id, query_gpus=False)
        event = rules.event(answer)
        if event and event != previous and event in notify["events"]:
            error = send(notify, event, answer)
            print(f"{time.strftime('%H:%M:%S')} {event}: {error or 'sent'}", flush=True)
            sent.append(event)
        previous = event
        if answer["state"] not in (*rules.LIVE, "unknown"):
            return sent
        time.sleep(float(notify["every_seconds"]))


def main(arguments: Sequence[str]) -> None:
    """Watch one run: ROOT WORKSPACE RUN_ID."""
    layout = Layout.of(arguments[0], arguments[1])
    run = runs.load(layout, arguments[2])
    deadline = time.monotonic() + 30
    while not (run.folder / "pid").exists() and time.monotonic() < deadline:
        time.sleep(0.2)
    watch(layout, run, check(run.record.get("notify") or {}))
