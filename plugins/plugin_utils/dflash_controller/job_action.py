"""Base class of action plugins whose module may start a job on the box: follow it and print its new lines.

The module returns `job: Snapshot.as_dict()`:

    class ActionModule(JobAction):
        "Follow the build that dflash_environment starts."
"""

from __future__ import annotations

import time
from typing import Any

from ansible.errors import AnsibleConnectionFailure
from dflash_ops.core import jobs

from dflash_controller.box_action import BoxAction

# Seconds that one call waits on the box for new lines, and seconds of retries after a lost connection.
POLL_SECONDS = 5.0
RECONNECT_SECONDS = 300.0
RECONNECT_PAUSE = 5.0


class JobAction(BoxAction):
    """Start a job, follow it, merge its result. Subclasses override `module_args`, `after_start` and `finish`."""

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        """Run the module and follow its job to the end."""
        result: dict[str, Any] = super().run(tmp, task_vars)
        variables = task_vars or {}
        started = self._execute_module(module_name=self._task.action, module_args=self.module_args(variables),
                                       task_vars=variables)
        result.update(self.after_start(started, variables))
        job = result.get("job")
        if result.get("failed") or not job or job.get("state") == "absent":
            return result
        with self.note_if_interrupted(variables, keeps_running_text(job["job_id"])):
            ended = self.follow(job, variables)
        return self.finish(result, ended, variables)

    def module_args(self, task_vars: dict[str, Any]) -> dict[str, Any]:
        """Return the module's arguments; a subclass adds data from the controller."""
        return dict(self._task.args)

    def after_start(self, result: dict[str, Any], task_vars: dict[str, Any]) -> dict[str, Any]:
        """Return the module's result; a subclass may use it and call the module again."""
        return result

    def finish(self, result: dict[str, Any], job: dict[str, Any], task_vars: dict[str, Any]) -> dict[str, Any]:
        """Merge the ended job into the module's result; a subclass may read the box again."""
        result["job"] = {name: job[name] for name in ("job_id", "state", "elapsed", "log", "attached")}
        if job["state"] == "done":
            outcome = job["exit"].get("result") or {}
            return {**result, "changed": True, **outcome}
        return {**result, **failed_result(job)}

    def follow(self, job: dict[str, Any], task_vars: dict[str, Any]) -> dict[str, Any]:
        """Print the job's lines until it ends; return its last snapshot."""
        attached = bool(job.get("attached"))
        if attached:
            self.print_progress(task_vars, job, f"attached to {job['job_id']}, running for {job['elapsed']:.0f} s")
        last_shown = time.monotonic()
        while True:
            for line in job["lines"]:
                self.print_progress(task_vars, job, line)
            newest = (job.get("progress") or {}).get("line", "")
            if job["lines"]:
                last_shown = time.monotonic()
            elif newest and time.monotonic() - last_shown > 2 * POLL_SECONDS:
                self.print_progress(task_vars, job, newest)
                last_shown = time.monotonic()
            if job["state"] != "running":
                return {**job, "attached": attached}
            job = self.poll(job, task_vars)

    def poll(self, job: dict[str, Any], task_vars: dict[str, Any]) -> dict[str, Any]:
        """Read the job once; retry a lost connection, which the job does not need."""
        arguments = {"root": self._task.args["root"], "workspace": self._task.args.get("workspace") or "",
                     "job_id": job["job_id"], "offset": job["offset"], "wait": POLL_SECONDS,
                     "lock_token": self._task.args.get("lock_token") or ""}
        deadline = time.monotonic() + RECONNECT_SECONDS
        while True:
            try:
                answer = self._execute_module(module_name="dflash_job", module_args=arguments, task_vars=task_vars)
            except AnsibleConnectionFailure as error:
                if time.monotonic() > deadline:
                    raise
                self.print_progress(task_vars, job, f"no connection ({error.message}); the job keeps running, retrying")
                time.sleep(RECONNECT_PAUSE)
                continue
            if "job" in answer:
                return dict(answer["job"])
            text = f"Cannot follow {job['job_id']}: {answer.get('msg') or 'no answer from the box'}"
            return {**job, "lines": [], "state": "failed", "exit": {"message": text}}

    def print_progress(self, task_vars: dict[str, Any], job: dict[str, Any], text: str) -> None:
        """Print one live line: box, elapsed seconds, text."""
        self.print_line(task_vars, f"{job['elapsed']:6.1f} s | {text}")


def keeps_running_text(job_id: str) -> str:
    """Return the message about a job that keeps running after its playbook was interrupted."""
    cancel = "" if job_id.startswith(jobs.STOP_PREFIX) else f"; playbooks/stop.yml -e job={job_id} cancels it"
    return f"{job_id} keeps running on the box: the same command attaches to it{cancel}"


def failed_result(job: dict[str, Any]) -> dict[str, Any]:
    """Return Ansible's failed result for a failed or dead job, with its log."""
    outcome = job["exit"]
    if job["state"] == "dead":
        message = f"The job {job['job_id']} ended without a report: its process was killed or the box was restarted."
        remedy = "run the same playbook again to restart the job"
    else:
        message, remedy = outcome.get("message", "the job failed"), outcome.get("remedy", "")
    text = f"{message} Remedy: {remedy}" if remedy else message
    return {**(outcome.get("facts") or {}), "failed": True, "changed": False,
            "msg": f"{text} (log on the box: {job['log']})", "log_tail": job.get("log_tail", "").splitlines()[-20:]}
