"""End a job that nobody wants any more: a build, a prewarm, the reading of inputs. A stop of a run is never ended."""
from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from . import files, jobs
from .errors import OpsError
from .paths import Layout

ALL = "all"


def cancellable_jobs(layout: Layout) -> list[str]:
    """Return the names of the jobs that run and may be ended."""
    names = sorted(folder.name for folder in layout.jobs.glob("*") if jobs.state_of(folder) == "running")
    return [name for name in names if not name.startswith(jobs.STOP_PREFIX)]


def describe(layout: Layout, names: Sequence[str]) -> str:
    """Say what these jobs are."""
    return ", ".join(f"{name} ({_title(layout, name)})" for name in names)


def _title(layout: Layout, job_id: str) -> str:
    record = files.read_json(layout.job(job_id) / "job.json") or {}
    return str(record.get("title") or "a job")


def cancel(layout: Layout, asked: str, *, check_mode: bool) -> dict[str, Any]:
    """End one job, or all of them; return the module's result.

    Raises:
        OpsError: there is no such job, or it does not end.
    """
    names = cancellable_jobs(layout) if asked == ALL else _named(layout, asked)
    if not names:
        state = "" if asked == ALL else f"; {asked} is {jobs.state_of(layout.job(asked))}"
        return {"changed": False, "jobs": [], "message": f"no job to end{state}"}
    what = describe(layout, names)
    diff = {"before": f"runs: {what}\n", "after": f"ended: {what}\n"}
    if check_mode:
        return {"changed": True, "jobs": names, "message": f"would end {what}", "diff": diff}
    for name in names:
        jobs.stop_job(layout, name)
        if jobs.state_of(layout.job(name)) == "running":
            raise OpsError(f"Job {name} does not end.", remedy=f"see {layout.job(name) / 'log'}; it waits for a disk")
    return {"changed": True, "jobs": names, "message": f"ended {what}", "diff": diff}


def _named(layout: Layout, job_id: str) -> list[str]:
    """Return the job when it runs, and nothing when it came to its end."""
    found = cancellable_jobs(layout)
    known = bool(jobs.JOB_ID_RULE.fullmatch(job_id)) and jobs.state_of(layout.job(job_id)) != "absent"
    if not known or job_id.startswith(jobs.STOP_PREFIX):
        raise OpsError(
            f"job={job_id!r}: {'a stop is not ended half way' if known else 'there is no such job'}.",
            remedy=f"give one of {describe(layout, found)}, or {ALL}" if found else "nothing: no job runs here",
        )
    return [job_id] if job_id in found else []
