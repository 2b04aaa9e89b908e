"""Follow the prewarm of a compile cache with live lines."""

from __future__ import annotations

from typing import Any

from ansible.plugins.loader import action_loader

action_loader.get("dflash_base", class_only=True)

from dflash_controller.job_action import JobAction

# Return values about the cache before the job, which a failed job has made obsolete.
BEFORE_JOB = ("state", "reason", "message", "cache_check", "damaged", "bytes", "archive", "diff")


class ActionModule(JobAction):
    """Follow the job that dflash_compile_cache starts and summarise its result in one sentence."""

    def finish(self, result: dict[str, Any], job: dict[str, Any], task_vars: dict[str, Any]) -> dict[str, Any]:
        """Merge the cache check into the result."""
        finished: dict[str, Any] = super().finish(result, job, task_vars)
        if finished.get("failed"):
            return {name: value for name, value in finished.items() if name not in BEFORE_JOB}
        check = finished.get("cache_check") or {}
        cold, warm = check.get("cold_seconds"), check.get("warm_seconds")
        cold_text = f"cold {cold:.1f} s, " if isinstance(cold, (int, float)) else ""
        timing = f"{cold_text}warm {warm} s, {check.get('misses')} misses"
        return {**finished, "message": f"cache {finished.get('cache_id')} is warm: {timing}"}
