"""Put this project's packages on sys.path.

Every other action plugin loads this one before it imports them:

    action_loader.get("dflash_base", class_only=True)

    from dflash_controller.action_base import DflashAction
"""

from __future__ import annotations

import sys
from pathlib import Path

from ansible.plugins.action import ActionBase

PLUGINS = Path(__file__).resolve().parents[1]
for folder in (PLUGINS / "module_utils", PLUGINS / "plugin_utils"):
    if str(folder) not in sys.path:
        sys.path.append(str(folder))


class ActionModule(ActionBase):  # type: ignore[misc]
    """Not an action of its own; action_loader wants the class."""
