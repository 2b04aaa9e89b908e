"""Live lines of a followed run: the changes between two status snapshots."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .step_line import step_text


def lines(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """Return one line for each change since the snapshot `before`: process, torch file, phases, newest step."""
    found = []
    if now.get("pid") and now.get("pid") != before.get("pid"):
        found.append(f"process {now['pid']} is running: {now.get('python') or 'starting'}")
    if now.get("torch") and now.get("torch") != before.get("torch"):
        found.append(f"torch is {now['torch']}")
    found += completed_phases(before, now)
    phase = now.get("phase")
    if (
        phase
        and now.get("phase_text") != before.get("phase_text")
        and (phase != "training" or before.get("phase") != phase)
    ):
        found.append(f"{phase}: {now['phase_text'].removeprefix(str(phase)).strip() or 'started'}")
    if now.get("steps_seen") and now.get("step") != before.get("step"):
        found.append(f"step {step_text(now)}")
    return found


def completed_phases(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """Return the final detail of each phase that ended between two snapshots."""
    shown = list(before.get("phases") or ())
    ended = [item for item in now.get("phases") or () if item[0] != now.get("phase")]
    return [f"{phase}: {detail}" for phase, detail in ended if [phase, detail] not in shown]
