"""Asks for what differs between two runs, prints it, and writes the JSON object."""

from __future__ import annotations

from ansible.plugins.loader import action_loader

action_loader.get("dflash_base", class_only=True)

from dflash_controller import screens
from dflash_controller.info_action import InfoAction


class ActionModule(InfoAction):
    """One look, as dflash_status_info takes it."""

    render = staticmethod(screens.compare_screen)
