"""State of a run, from its record and /proc."""

from __future__ import annotations

import dataclasses
import signal
import time
from typing import Any

from ..core import processes
from ..run import metrics, run_processes, runs
from . import rules

WRITE_GRACE = 2.0  # seconds between the end of the trainer and its exit.json


@dataclasses.dataclass(frozen=True)
class Verdict:
    """The state of a run.

    Args:
        state: running, stalled, finished, stopped, failed, killed, lost, not running, or unknown.
        detail: one sentence.
        rc: exit code of an ended run.
        signal: number of the signal that ended it.
    """

    state: str
    detail: str = ""
    rc: int | None = None
    signal: int | None = None


def read(run: runs.Run, *, stall_seconds: float = rules.STALL_SECONDS, grace: float = WRITE_GRACE) -> Verdict:
    """Return the state of `run`; wait up to `grace` seconds for the exit.json of a process that has just ended."""
    deadline = time.monotonic() + grace
    while True:
        main = run_processes.main_process(run)
        if main is not None:
            reason = _stall_reason(run, main, stall_seconds)
            return Verdict("stalled", reason) if reason else Verdict("running", phase_text(run))
        ended = run.read("exit.json")
        if ended:
            return _ended(run, ended)
        if time.monotonic() >= deadline or not _same_boot(run):
            return _without_exit_record(run)
        time.sleep(0.1)


def _stall_reason(run: runs.Run, main: processes.Process, stall_seconds: float) -> str:
    fields = processes.stat_fields(main.pid)
    silence = time.time() - last_sign(run)
    limit = stall_seconds
    if silence > stall_seconds:  # only then are the metrics needed
        limit = rules.stall_limit(metrics.read_metrics(run.metrics), stall_seconds)
    return rules.stall_reason(pid=main.pid, process_state=fields[0] if fields else "", silence=silence, limit=limit)


def _same_boot(run: runs.Run) -> bool:
    return run.record.get("boot_id") in (None, processes.boot_id())


def _ended(run: runs.Run, ended: dict[str, Any]) -> Verdict:
    rc, number = int(ended.get("rc", 1)), ended.get("signal")
    if ended.get("shutdown"):
        return _ended_by_shutdown(run, rc, number)
    if number:
        name = signal_name(int(number))
        if run.read("stop.json").get("forced"):
            detail = f"stop.yml killed it with {name}; the steps since its last checkpoint are lost"
            return Verdict("stopped", detail, rc, number)
        return Verdict("killed", f"the trainer was killed by signal {number} ({name})", rc, number)
    if rc != 0:
        failure = run.read("failure.json")
        text = f": {failure.get('name')}: {failure.get('message')}" if failure else ""
        return Verdict("failed", f"the trainer exited with rc {rc}{text}", rc)
    if run.read("state.json").get("phase") == "stopped":
        return Verdict("stopped", "stopped on request, after a checkpoint", rc)
    return Verdict("finished", "training is complete", rc)


def _ended_by_shutdown(run: runs.Run, rc: int, number: int | None) -> Verdict:
    """Return the state of a run whose wrapper recorded that the box shut down."""
    if rc == 0 and run.read("state.json").get("phase") == "finished":
        return Verdict("finished", "training is complete; the box was shutting down", rc)
    if rc == 0:
        return Verdict("stopped", "the box shut down during training; the trainer wrote a checkpoint first", rc)
    how = f"signal {number} ({signal_name(number)})" if number else f"rc {rc}"
    return Verdict("lost", f"the box shut down during training (the trainer ended with {how})", rc, number)


def _without_exit_record(run: runs.Run) -> Verdict:
    if not _same_boot(run):
        return Verdict("lost", "the box was restarted during training")
    return Verdict("lost", "the trainer and the wrapper that records its exit were both killed")


def signal_name(number: int) -> str:
    """Return `SIGKILL` for 9."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def phase_text(run: runs.Run) -> str:
    """Return the phase that the trainer reports, with its progress."""
    state = run.read("state.json")
    if not state:
        return "starting"
    part = f" {state['done']}/{state['total']}" if state.get("total") else ""
    if state.get("phase") == "training":  # its detail is the newest step, which the step line shows
        return f"training{part}"
    return f"{state.get('phase', '?')}{part} {state.get('detail', '')}".strip()


def last_sign(run: runs.Run) -> float:
    """Return the time of the last sign of life (epoch seconds): the newest of state, metrics and log."""
    times = [float(run.read("state.json").get("updated_at") or 0), float(run.record.get("started_at") or 0)]
    for path in (run.metrics, run.log):
        try:
            times.append(path.stat().st_mtime)
        except OSError:
            continue
    return max(times)
