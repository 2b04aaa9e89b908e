"""Rules for stalled, slow and dead runs, shared by status, health check and notification."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ..run import metrics

LIVE = ("running", "stalled")
DEAD = ("failed", "killed", "lost")
NEEDS_ACTION = (*DEAD, "stalled", "unknown")
EVENTS = ("dead", "stalled", "slow", "finished")

STALL_SECONDS = 300.0  # silence that counts as a stall
STALL_STEPS = 20  # silence shorter than this many median step times is never a stall
SUSPENDED = "Tt"  # process states of /proc: stopped by a signal, stopped by a debugger
TOLERANCE = 0.8  # lowest acceptable fraction of the expected speed
SLOW_WINDOWS = 3  # windows of steps before a running run is judged by its speed


def stall_limit(rows: Sequence[dict[str, Any]], seconds: float) -> float:
    """Return the seconds of silence that count as a stall: `seconds` or 20 median step times, whichever is longer."""
    return max(seconds, STALL_STEPS * (metrics.step_seconds(rows) or 0.0))


def stall_reason(*, pid: int, process_state: str, silence: float, limit: float) -> str:
    """Return why the process counts as stalled, or an empty string.

    Args:
        pid: the trainer's process.
        process_state: its state letter in /proc/PID/stat.
        silence: seconds since its last step, phase or log line.
        limit: `stall_limit`.
    """
    if process_state and process_state in SUSPENDED:
        return f"process {pid} is suspended (state {process_state}); resume it with SIGCONT"
    return f"no step and no log line for {silence:.0f} s (limit {limit:g} s)" if silence > limit else ""


def required_tok_s(expected: float, tolerance: float | None = None) -> float:
    """Return the lowest speed that is not slow; 0 when no speed is expected."""
    return expected * (tolerance or TOLERANCE)


def is_slow(tok_s: float, *, required: float) -> bool:
    """Return True when a speed is below the required one."""
    return bool(required) and tok_s < required


def had_time_to_speed_up(steps: int, *, window: int) -> bool:
    """Return True when a running run has logged enough steps for its speed to be judged."""
    return steps >= SLOW_WINDOWS * window


def event(answer: Mapping[str, Any]) -> str:
    """Return the event that a status snapshot reports; empty when the run is healthy or its state is unknown."""
    state = answer.get("state")
    if state in DEAD:
        return "dead"
    if state in ("stalled", "finished"):
        return str(state)
    names = [str(item["name"]) for item in answer.get("problems") or ()]
    return "slow" if state == "running" and "slow" in names else ""
