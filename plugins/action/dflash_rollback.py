"""Choose the known-good run to go back to."""

from __future__ import annotations

from ansible.plugins.loader import action_loader

action_loader.get("dflash_base", class_only=True)

from dflash_controller.box_action import ModuleAction


class ActionModule(ModuleAction):
    """One remote call."""
