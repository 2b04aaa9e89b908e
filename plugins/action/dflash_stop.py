"""Follows the stop of a run with live lines."""

from __future__ import annotations

from typing import Any

from ansible.module_utils.parsing.convert_bool import boolean
from ansible.plugins.loader import action_loader

action_loader.get("dflash_base", class_only=True)

from dflash_controller.job_action import JobAction


class ActionModule(JobAction):
    """What dflash_stop starts, told in one sentence at the end."""

    def after_start(self, result: dict[str, Any], task_vars: dict[str, Any]) -> dict[str, Any]:
        """Keep what is to be known when the launch that follows does not come: an interrupted or failed playbook."""
        if result.get("start") and not result.get("failed"):
            self.keep(result, task_vars, "is being stopped" if result.get("job") else f"is {result['state']}")
        return result

    def keep(self, result: dict[str, Any], task_vars: dict[str, Any], how: str) -> None:
        """Let the playbook's end say how the box is left, when a launch was to follow."""
        if boolean(self._task.args.get("for_launch", False)) and not self._task.check_mode:
            self.set_exit_message(task_vars, nothing_trains(result["run_id"], how, result["start"]))

    def finish(self, result: dict[str, Any], job: dict[str, Any], task_vars: dict[str, Any]) -> dict[str, Any]:
        """Merge the end of the stop into the result."""
        done: dict[str, Any] = super().finish(result, job, task_vars)
        if done.get("failed"):
            self.clear_exit_message(task_vars)
        else:
            self.keep(result, task_vars, "is stopped")
            step = done.get("checkpoint_step")
            how = "was ended by force" if done.get("forced") else f"is {done.get('state')}"
            newest = f"step {step}" if step is not None else "none"
            said = f"run {done.get('run_id')} {how}; newest checkpoint: {newest}"
            done["message"] = "; ".join(text for text in (said, done.get("beside")) if text)
        return done


def nothing_trains(run_id: str, how: str, start: str) -> str:
    """Say how a box is left between a stop and the launch that it was made for."""
    return (
        f"run {run_id} {how} and its successor was not launched, so nothing trains here: the same command goes on "
        f"with that, and {start} starts the configuration of {run_id} again"
    )
