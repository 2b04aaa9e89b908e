"""Follow the stop of a run with live lines."""

from __future__ import annotations

from typing import Any

from ansible.module_utils.parsing.convert_bool import boolean
from ansible.plugins.loader import action_loader

action_loader.get("dflash_base", class_only=True)

from dflash_controller.job_action import JobAction


class ActionModule(JobAction):
    """Action plugin that follows the stop job and summarises it in one sentence."""

    def after_start(self, result: dict[str, Any], task_vars: dict[str, Any]) -> dict[str, Any]:
        """Keep a note for the end of the playbook, in case the launch does not happen."""
        if result.get("start") and not result.get("failed"):
            self.keep(result, task_vars, "is being stopped" if result.get("job") else f"is {result['state']}")
        return result

    def keep(self, result: dict[str, Any], task_vars: dict[str, Any], how: str) -> None:
        """Keep the note that nothing is training, when a launch should follow the stop."""
        if boolean(self._task.args.get("for_launch", False)) and not self._task.check_mode:
            self.set_exit_message(task_vars, nothing_trains(result["run_id"], how, result["start"]))

    def finish(self, result: dict[str, Any], job: dict[str, Any], task_vars: dict[str, Any]) -> dict[str, Any]:
        """Merge the result of the stop job into the module's result."""
        done: dict[str, Any] = super().finish(result, job, task_vars)
        if done.get("failed"):
            self.clear_exit_message(task_vars)
        else:
            self.keep(result, task_vars, "is stopped")
            step = done.get("checkpoint_step")
            how = "was killed" if done.get("forced") else f"is {done.get('state')}"
            newest = f"step {step}" if step is not None else "none"
            message = f"run {done.get('run_id')} {how}; newest checkpoint: {newest}"
            done["message"] = "; ".join(text for text in (message, done.get("other_jobs")) if text)
        return done


def nothing_trains(run_id: str, how: str, start: str) -> str:
    """Return the note for a playbook that ended between stop and launch."""
    return (
        f"run {run_id} {how}, no new run was started and nothing is training. Run the same command again to continue, "
        f"or {start} to start the configuration of {run_id} again"
    )
