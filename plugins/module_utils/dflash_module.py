"""Common options of the modules, renewal of the operator lock, and conversion of errors to failed results."""

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
    """Run a module.

    Args:
        arguments: the module's options, in addition to the common ones.
        act: called with the module and the box; returns the result.

    Errors that an operator can correct become a failed result with a remedy; others are raised.
    """
    module = AnsibleModule(argument_spec={**COMMON, **arguments}, supports_check_mode=True)
    layout = Layout.of(module.params["root"], module.params["workspace"])
    try:
        if module.params["lock_token"]:
            operator_lock.renew(layout, module.params["lock_token"])
        result = act(module, layout)
    except OpsError as error:
        module.fail_json(msg=str(error), **error.facts)
    except OSError as error:
        explained = disk.explain_os_error(error, layout)
        if explained is None:
            raise
        module.fail_json(msg=str(explained))
    module.exit_json(**{"changed": False, **result})
