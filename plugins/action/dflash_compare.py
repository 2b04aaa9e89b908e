"""Asks for what differs between two runs, prints it, and writes the JSON object."""

from __future__ import annotations

from typing import Any

from ansible.plugins.loader import action_loader

DflashStatus: Any = action_loader.get("dflash_status", class_only=True)


class ActionModule(DflashStatus):  # type: ignore[misc]
    """One look, as dflash_status takes it."""
