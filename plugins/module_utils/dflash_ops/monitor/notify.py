"""An optional hook that tells somebody when a run is dead, stalled, slow or finished. One watcher a run."""

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
from . import status

EVENTS = ("dead", "stalled", "slow", "finished")
PAUSE_SECONDS = 30.0
HOOK_SECONDS = 60.0


def check(notify: Mapping[str, Any]) -> dict[str, Any]:
    """Return the hook in its one form.

    Raises:
        OpsError: unknown keys or events, or neither a command nor an address.
    """
    if not notify:
        return {}
    unknown = sorted(set(notify) - {"command", "url", "events", "every_seconds"})
    events = list(notify.get("events") or EVENTS)
    wrong = [event for event in events if event not in EVENTS]
    if unknown or wrong or not (notify.get("command") or notify.get("url")):
        what = f"keys {unknown}" if unknown else f"events {wrong}" if wrong else "neither command nor url"
        raise OpsError(
            f"training_run_notify holds {what}.",
            remedy=f"give command (a program) or url (a webhook), and events out of {', '.join(EVENTS)}",
        )
    return {
        "command": str(notify.get("command") or ""),
        "url": str(notify.get("url") or ""),
        "events": events,
        "every_seconds": float(notify.get("every_seconds") or PAUSE_SECONDS),
    }


def event_of(answer: Mapping[str, Any]) -> str:
    """Return the event a status snapshot stands for; empty when all is well or nothing is known."""
    state = answer.get("state")
    if state in ("failed", "killed", "lost"):
        return "dead"
    if state in ("stalled", "finished"):
        return str(state)
    names = [str(item["name"]) for item in answer.get("problems") or ()]
    return "slow" if state == "running" and "slow" in names else ""


def send(notify: Mapping[str, Any], event: str, answer: Mapping[str, Any]) -> str:
    """Call the hook; return what went wrong, empty when nothing did. The message goes to stdin or as the JSON body."""
    told = {key: answer.get(key) for key in ("run_id", "state", "detail", "step", "loss", "tok_s", "log", "problems")}
    body = json.dumps({"event": event, **told}).encode()
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
                said = truncate.shorten(done.stderr.decode(errors="replace"), 200)
                return f"the command ended with rc {done.returncode}: {said}"
        if notify.get("url"):
            request = urllib.request.Request(
                str(notify["url"]), data=body, headers={"Content-Type": "application/json"}
            )
            urllib.request.urlopen(request, timeout=HOOK_SECONDS).close()
    except (OSError, ValueError, subprocess.SubprocessError) as error:
        return f"{type(error).__name__}: {error}"
    return ""


def watch(layout: Layout, run: runs.Run, notify: Mapping[str, Any]) -> list[str]:
    """Look at the run until it ends and tell each event once as it begins; return the events told."""
    told: list[str] = []
    previous = ""
    while True:
        answer = status.snapshot(layout, run_id=run.run_id, ask_gpus=False)
        event = event_of(answer)
        if event and event != previous and event in notify["events"]:
            problem = send(notify, event, answer)
            print(f"{time.strftime('%H:%M:%S')} {event}: {problem or 'told'}", flush=True)
            told.append(event)
        previous = event
        if answer["state"] not in (*status.LIVE, "unknown"):
            return told
        time.sleep(float(notify["every_seconds"]))


def main(words: Sequence[str]) -> None:
    """Watch one run: ROOT WORKSPACE RUN_ID."""
    layout = Layout.of(words[0], words[1])
    run = runs.load(layout, words[2])
    deadline = time.monotonic() + 30
    while not (run.folder / "pid").exists() and time.monotonic() < deadline:
        time.sleep(0.2)
    watch(layout, run, check(run.record.get("notify") or {}))
