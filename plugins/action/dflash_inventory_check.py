"""Judges what the operator wrote, on the controller only; one message names every word that cannot work."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from ansible.plugins.action import ActionBase

REPO = Path(__file__).resolve().parents[2]
if str(REPO / "plugins/module_utils") not in sys.path:
    sys.path.append(str(REPO / "plugins/module_utils"))

from dflash_ops import environment, words
from dflash_ops.errors import OpsError


class ActionModule(ActionBase):
    """Arguments are variable names and values; the result carries what the configuration needs."""

    TRANSFERS_FILES = False
    _supports_check_mode = True
    _supports_async = False
    _requires_connection = False

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        """Collect every problem, then the needs of a configuration that can be read."""
        result: dict[str, Any] = super().run(tmp, task_vars)
        given = {name: value for name, value in self._task.args.items() if value is not None}
        found = words.problems(given, REPO)
        needs: dict[str, Any] = {}
        if not [text for text in found if text.startswith(("dflash_config", "dflash_overrides"))]:
            try:
                needs = words.training_needs(given["dflash_config"], given["dflash_overrides"], REPO)
            except OpsError as error:
                found.append(str(error))
        if self._connection.transport == "local" and not [text for text in found if text.startswith("dflash_root")]:
            try:
                environment.refuse_file(Path(given["dflash_root"]).expanduser(), "dflash_root")
            except OpsError as error:
                found.append(str(error))
        if found:
            return {
                **result,
                "failed": True,
                "problems": found,
                "msg": "Nothing was changed. "
                + " ".join(f"({number}) {text}" for number, text in enumerate(found, start=1)),
            }
        return {**result, "changed": False, "ansible_facts": {"dflash_needs": needs}}
