"""Ensure that no run is running, by a stop job where that is needed; or cancel a job."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..core import job_cancellation, jobs
from ..core.paths import Layout
from ..monitor import commands, verdict
from ..run import run_processes
from . import stop


def ensure(layout: Layout, params: Mapping[str, Any], *, check_mode: bool) -> dict[str, Any]:
    """Cancel the named job; without one, stop the run and report the jobs that keep running."""
    if params["job"]:
        return job_cancellation.cancel(layout, params["job"], check_mode=check_mode)
    other_jobs = job_cancellation.cancellable_jobs(layout)
    result = stop_run(layout, params, check_mode=check_mode)
    if other_jobs:
        description = job_cancellation.describe(layout, other_jobs)
        result["other_jobs"] = f"{description} keeps running; -e job={other_jobs[0]} cancels it"
        result["message"] = f"{result['message']}; {result['other_jobs']}"
    return result


def stop_run(layout: Layout, params: Mapping[str, Any], *, check_mode: bool) -> dict[str, Any]:
    """Start a stop job for the running run; return the module's result."""
    run = stop.run_to_stop(layout, params["run"])
    if run is None:
        message = "no run was ever launched on this box"
        return {"changed": False, "run_id": "", "state": "not running", "message": message}
    found = run_processes.processes_of(run)
    if not found:
        ended = verdict.read(run)
        return {
            "changed": False,
            "run_id": run.run_id,
            "state": ended.state,
            "start": commands.start_command(run),
            "message": f"no run is running; {run.run_id} is {ended.state}: {ended.detail}",
        }
    pids = ", ".join(str(process.pid) for process in found)
    result = {
        "run_id": run.run_id,
        "start": commands.start_command(run),
        "diff": {"before": f"{run.run_id} is running (pid {pids})\n", "after": f"{run.run_id} stopped\n"},
    }
    if check_mode:
        return {**result, "changed": True, "state": "running", "message": f"would stop {run.run_id} (pid {pids})"}
    name = f"{jobs.STOP_PREFIX}{'now-' if params['immediately'] else ''}{run.run_id}"
    arguments = {
        "root": str(layout.root),
        "workspace": str(layout.workspace),
        "run_id": run.run_id,
        "immediately": params["immediately"],
        "timeout": params["timeout"],
    }
    job = jobs.start_or_attach(layout, name, "operations.stop:job", arguments, title=f"stop run {run.run_id}")
    return {**result, "message": f"stopping {run.run_id}", "job": job.as_dict()}
