"""Follows the warm-up of a compile cache with live lines."""

from __future__ import annotations

from typing import Any

from ansible.plugins.loader import action_loader

BEFORE = ("state", "reason", "message", "proof", "damaged", "bytes", "archive", "diff")

action_loader.get("dflash_base", class_only=True)

from dflash_controller.job_action import JobAction


class ActionModule(JobAction):
    """What dflash_compile_cache starts, told in one sentence at the end."""

    def finish(self, result: dict[str, Any], job: dict[str, Any], task_vars: dict[str, Any]) -> dict[str, Any]:
        """Merge the proof into the result; a job that found the cache warm changed nothing."""
        done: dict[str, Any] = super().finish(result, job, task_vars)
        if done.get("failed"):  # how warm it was before the work no longer holds
            done = {name: value for name, value in done.items() if name not in BEFORE}
        else:
            proof = done.get("proof") or {}
            cold, warm = proof.get("cold_seconds"), proof.get("warm_seconds")
            before = f"cold {cold:.1f} s, " if isinstance(cold, (int, float)) else ""
            timing = f"{before}warm {warm} s, {proof.get('misses')} misses"
            done["message"] = f"cache {done.get('cache_id')} is warm: {timing}"
        return done
