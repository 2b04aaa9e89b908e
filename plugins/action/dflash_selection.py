"""Names the release from the checkout here, and lets the box name the environment of the lock."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from ansible.plugins.action import ActionBase

REPO = Path(__file__).resolve().parents[2]
if str(REPO / "plugins/module_utils") not in sys.path:
    sys.path.append(str(REPO / "plugins/module_utils"))

from dflash_ops import checkout
from dflash_ops.errors import OpsError


class ActionModule(ActionBase):
    """One remote call."""

    TRANSFERS_FILES = False
    _supports_check_mode = True
    _supports_async = False

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        """Send the lock and the release's name; the box adds the rest."""
        result: dict[str, Any] = super().run(tmp, task_vars)
        arguments = dict(self._task.args)
        lock = Path(self._find_needle("files", arguments["lock_file"]))
        arguments["lock"], arguments["lock_name"] = lock.read_text(), lock.name
        try:
            arguments["release_id"] = checkout.release_id(
                REPO,
                str(arguments.get("version") or "HEAD"),
                allow_dirty=bool(arguments.get("allow_dirty")),
            )
        except OpsError as error:
            return {**result, "failed": True, "msg": str(error)}
        return {**result, **self._execute_module(module_args=arguments, task_vars=task_vars)}
