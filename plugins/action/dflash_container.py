"""Judges the container's words on the controller, so that one message names them all before any host is reached."""
from __future__ import annotations

from typing import Any

import yaml
from ansible.plugins.loader import action_loader
from ansible.utils.vars import load_extra_vars

DflashAction: Any = action_loader.get("dflash_action", class_only=True)

from dflash_ops import verb_words, words

PREFIX = "gpu_container_"


class ActionModule(DflashAction):  # type: ignore[misc]
    """Runs the module of the same name, unless a variable is one that nothing would read."""


    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        """Refuse a slip of the keyboard; else run the module."""
        result: dict[str, Any] = super().run(tmp, task_vars)
        variables = task_vars or {}
        typed = [name for name in load_extra_vars(self._loader) if name.startswith(PREFIX)]
        found = words.way_problems(self._connection.transport)
        found += verb_words.unknown(typed, variables, specified(), (PREFIX,))
        if found:
            return {**result, "failed": True, "msg": "Nothing was changed. " + " ".join(found)}
        result.update(self._execute_module(task_vars=variables))
        return result


def specified() -> set[str]:
    """Return the role's variables."""
    file = DflashAction.repo / "roles/gpu_container/meta/argument_specs.yml"
    return {*yaml.safe_load(file.read_text(encoding="utf-8"))["argument_specs"]["main"]["options"]}
