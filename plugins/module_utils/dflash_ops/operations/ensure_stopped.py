"""From what an operator asked of stop to a job, or to the sentence that nothing lives."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..core import cancel_job, jobs
from ..core.paths import Layout
from ..monitor import commands, verdict
from ..run import run_processes
from . import stop


def ensure(layout: Layout, want: Mapping[str, Any], *, check_mode: bool) -> dict[str, Any]:
    """End the job that was named; else start stopping what lives, and say which jobs go on."""
    if want["job"]:
        return cancel_job.end(layout, want["job"], check_mode=check_mode)
    beside = cancel_job.running(layout)
    result = stop_run(layout, want, check_mode=check_mode)
    if beside:
        result["beside"] = f"{cancel_job.told(layout, beside)} goes on; -e job={beside[0]} ends that"
        result["message"] = f"{result['message']}; {result['beside']}"
    return result


def stop_run(layout: Layout, want: Mapping[str, Any], *, check_mode: bool) -> dict[str, Any]:
    """Start stopping what lives; return the module's result."""
    run = stop.run_to_stop(layout, want["run"])
    if run is None:
        return {"changed": False, "run_id": "", "state": "not running", "message": "nothing was ever launched here"}
    found = run_processes.of_run(run)
    if not found:
        said = verdict.read(run)
        return {
            "changed": False,
            "run_id": run.run_id,
            "state": said.state,
            "start": commands.start_command(run),
            "message": f"nothing runs; {run.run_id} is {said.state}: {said.detail}",
        }
    pids = ", ".join(str(process.pid) for process in found)
    result = {
        "run_id": run.run_id,
        "start": commands.start_command(run),
        "diff": {"before": f"{run.run_id} lives (pid {pids})\n", "after": f"{run.run_id} stopped\n"},
    }
    if check_mode:
        return {**result, "changed": True, "state": "running", "message": f"would stop {run.run_id} (pid {pids})"}
    name = f"{jobs.STOPS}{'now-' if want['immediately'] else ''}{run.run_id}"
    told = {
        "root": str(layout.root),
        "workspace": str(layout.workspace),
        "run_id": run.run_id,
        "immediately": want["immediately"],
        "timeout": want["timeout"],
    }
    job = jobs.start_or_attach(layout, name, "operations.stop:job", told, title=f"stop run {run.run_id}")
    return {**result, "message": f"stopping {run.run_id}", "job": job.as_dict()}
