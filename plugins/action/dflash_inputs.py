"""Follows the fingerprinting of big inputs."""

from __future__ import annotations

from typing import Any

from ansible.plugins.loader import action_loader

DflashJob: Any = action_loader.get("dflash_job", class_only=True)


class ActionModule(DflashJob):  # type: ignore[misc]
    """The job's lines, then the module's result."""
