"""Print the differences between two runs and write them as JSON."""

from __future__ import annotations

from ansible.plugins.loader import action_loader

action_loader.get("dflash_base", class_only=True)

from dflash_controller import screens
from dflash_controller.info_action import InfoAction


class ActionModule(InfoAction):
    """One module call with its own screen."""

    render = staticmethod(screens.compare_screen)
