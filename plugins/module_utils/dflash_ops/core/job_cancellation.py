"""Cancel jobs that are no longer needed, such as a build, a prewarm or a check of inputs, but never a stop of a run."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from . import files, jobs
from .errors import OpsError
from .paths import Layout

ALL = "all"


def cancellable_jobs(layout: Layout) -> list[str]:
    """Return the names of the running jobs that may be cancelled."""
    names = sorted(folder.name for folder in layout.jobs.glob("*") if jobs.state_of(folder) == "running")
    return [name for name in names if not name.startswith(jobs.STOP_PREFIX)]


def describe(layout: Layout, names: Sequence[str]) -> str:
    """Return the names and titles of jobs as text."""
    return ", ".join(f"{name} ({_title(layout, name)})" for name in names)


def _title(layout: Layout, job_id: str) -> str:
    record = files.read_json(layout.job(job_id) / "job.json") or {}
    return str(record.get("title") or "a job")


def cancel(layout: Layout, requested: str, *, check_mode: bool) -> dict[str, Any]:
    """Cancel one job, or all of them, and return the module's result.

    Args:
        layout: the box.
        requested: name of a job, or `all`.
        check_mode: only report what would be cancelled.

    Raises:
        OpsError: the job does not exist or does not terminate.
    """
    names = cancellable_jobs(layout) if requested == ALL else _select(layout, requested)
    if not names:
        state = "" if requested == ALL else f"; {requested} is {jobs.state_of(layout.job(requested))}"
        return {"changed": False, "jobs": [], "message": f"no job to cancel{state}"}
    description = describe(layout, names)
    diff = {"before": f"running: {description}\n", "after": f"cancelled: {description}\n"}
    if check_mode:
        return {"changed": True, "jobs": names, "message": f"would cancel {description}", "diff": diff}
    for name in names:
        jobs.stop_job(layout, name)
        if jobs.state_of(layout.job(name)) == "running":
            log = layout.job(name) / "log"
            raise OpsError(f"Job {name} does not terminate.", remedy=f"see {log}; its processes wait for a disk")
    return {"changed": True, "jobs": names, "message": f"cancelled {description}", "diff": diff}


def _select(layout: Layout, job_id: str) -> list[str]:
    """Return the job if it is running, and nothing if it has ended."""
    running = cancellable_jobs(layout)
    exists = bool(jobs.JOB_ID_RULE.fullmatch(job_id)) and jobs.state_of(layout.job(job_id)) != "absent"
    if not exists or job_id.startswith(jobs.STOP_PREFIX):
        raise OpsError(
            f"job={job_id!r}: {'the stop of a run cannot be cancelled' if exists else 'the job does not exist'}.",
            remedy=f"give one of {describe(layout, running)}, or {ALL}" if running else "none; no job is running",
        )
    return [job_id] if job_id in running else []
