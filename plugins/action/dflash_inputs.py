"""Print the progress of the job that fingerprints large inputs."""

from __future__ import annotations

from ansible.plugins.loader import action_loader

action_loader.get("dflash_base", class_only=True)

from dflash_controller.job_action import JobAction


class ActionModule(JobAction):
    """Progress of the job, then the module's result."""
