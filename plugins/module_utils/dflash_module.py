"""What every module here does in the same way: common options, the lock's renewal, and how a refusal is told."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.dflash_ops import operator_lock
from ansible.module_utils.dflash_ops.errors import OpsError
from ansible.module_utils.dflash_ops.paths import Layout

WORKSPACE = "/workspace"
COMMON: dict[str, dict[str, Any]] = {
    "root": {"type": "str", "required": True},
    "workspace": {"type": "str", "default": ""},
    "lock_token": {"type": "str", "default": "", "no_log": False},
}
SELECTION: dict[str, dict[str, Any]] = {
    "env_id": {"type": "str", "default": ""},
    "release_id": {"type": "str", "default": ""},
    "config": {"type": "str", "default": ""},
    "overrides": {"type": "list", "elements": "str", "default": []},
    "environment": {"type": "dict", "default": {}},
}


def default_workspace() -> str:
    """Return the mount for big files where a box has one that we may write to; empty: the root."""
    return WORKSPACE if Path(WORKSPACE).is_dir() and os.access(WORKSPACE, os.W_OK) else ""


def run_module(arguments: Mapping[str, dict[str, Any]], act: Callable[[AnsibleModule, Layout], dict[str, Any]]) -> None:
    """Be a module: `act` gets the module and the box and returns the result; an OpsError becomes a failure."""
    module = AnsibleModule(argument_spec={**COMMON, **arguments}, supports_check_mode=True)
    layout = Layout.of(module.params["root"], module.params["workspace"] or default_workspace())
    try:
        if module.params["lock_token"]:
            operator_lock.renew(layout, module.params["lock_token"])
        result = act(module, layout)
    except OpsError as error:
        module.fail_json(msg=str(error), **error.facts)
    module.exit_json(**{"changed": False, **result})
