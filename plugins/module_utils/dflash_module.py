"""What every module here does in the same way: common options, the lock's renewal, and how a refusal is told."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.dflash_ops.core import disk, operator_lock
from ansible.module_utils.dflash_ops.core.errors import OpsError
from ansible.module_utils.dflash_ops.core.paths import Layout

COMMON: dict[str, dict[str, Any]] = {
    "root": {"type": "str", "required": True},
    "workspace": {"type": "str", "default": ""},
    "lock_token": {"type": "str", "default": "", "no_log": False},
}
RUN: dict[str, dict[str, Any]] = {"run": {"type": "str", "default": ""}}
ANSWER: dict[str, dict[str, Any]] = {"json_out": {"type": "str", "default": ""}}
SELECTION: dict[str, dict[str, Any]] = {
    "env_id": {"type": "str", "default": ""},
    "release_id": {"type": "str", "default": ""},
    "config": {"type": "str", "default": ""},
    "overrides": {"type": "list", "elements": "str", "default": []},
    "environment": {"type": "dict", "default": {}},
}


def run_module(arguments: Mapping[str, dict[str, Any]], act: Callable[[AnsibleModule, Layout], dict[str, Any]]) -> None:
    """Be a module: `act` gets the module and the box and returns the result; what an operator can mend is told."""
    module = AnsibleModule(argument_spec={**COMMON, **arguments}, supports_check_mode=True)
    layout = Layout.of(module.params["root"], module.params["workspace"])
    try:
        if module.params["lock_token"]:
            operator_lock.renew(layout, module.params["lock_token"])
        result = act(module, layout)
    except OpsError as error:
        module.fail_json(msg=str(error), **error.facts)
    except OSError as error:
        told = disk.explain_os_error(error, layout)
        if told is None:
            raise
        module.fail_json(msg=str(told))
    module.exit_json(**{"changed": False, **result})
