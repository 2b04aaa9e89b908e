#!/usr/bin/python
"""Acquire or release the operator lock of a box."""

from __future__ import annotations

DOCUMENTATION = r"""
module: dflash_operator_lock
short_description: Acquire or release the operator lock of a box
description:
  - Acquires the operator lock for the running playbook, so that one operator at a time works on a box.
  - Fails with the name of the holder and the time of acquisition. The lock of a dead holder is taken over.
  - The action plugin of the same name identifies the playbook.
extends_documentation_fragment: [dflash_box]
options:
  state:
    description: V(held) acquires or renews the lock, V(free) releases it.
    type: str
    choices: [held, free]
    default: held
  operation:
    description: Name of the playbook, shown to the operator who has to wait.
    type: str
    default: ""
  holder:
    description: Identity of the playbook. Set by the action plugin.
    type: dict
    default: {}
  dead_token:
    description: Token of a holder that is dead on the controller. Set by the action plugin.
    type: str
    default: ""
attributes:
  check_mode:
    description: The lock is not acquired. The module still fails when another operator holds it.
    support: full
  diff_mode:
    description: The module does not report a diff.
    support: none
"""

EXAMPLES = r"""
- name: Acquire the operator lock
  dflash_operator_lock:
    operation: deploy
"""

RETURN = r"""
token:
  description: Token with which other modules renew the lock.
  returned: success
  type: str
  sample: 3f2a91c04b7d1e88
taken_over:
  description: Dead holder whose lock was taken over.
  returned: success
  type: str
  sample: ""
"""

from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.dflash_module import run_module
from ansible.module_utils.dflash_ops.core import disk, operator_lock
from ansible.module_utils.dflash_ops.core.paths import Layout

ARGUMENTS: dict[str, dict[str, Any]] = {
    "state": {"type": "str", "choices": ["held", "free"], "default": "held"},
    "operation": {"type": "str", "default": ""},
    "holder": {"type": "dict", "default": {}},
    "dead_token": {"type": "str", "default": "", "no_log": False},
}


def act(module: AnsibleModule, layout: Layout) -> dict[str, Any]:
    """Acquire or release the lock; neither is reported as a change."""
    params = module.params
    holder = operator_lock.holder_from({**params["holder"], "operation": params["operation"]})
    if params["state"] == "free":
        if not module.check_mode:
            operator_lock.release(layout, holder.token)
        return {"token": "", "taken_over": ""}
    disk.require_writable(layout, create=not module.check_mode)
    if module.check_mode:
        operator_lock.require_free(layout, holder, dead_token=params["dead_token"])
        return {"token": "", "taken_over": ""}
    lock = operator_lock.acquire(layout, holder, dead_token=params["dead_token"])
    return {"token": holder.token, "taken_over": lock["taken_over"]}


if __name__ == "__main__":
    run_module(ARGUMENTS, act)
