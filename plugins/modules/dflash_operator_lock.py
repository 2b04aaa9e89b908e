#!/usr/bin/python
"""See DOCUMENTATION."""

from __future__ import annotations

DOCUMENTATION = r"""
module: dflash_operator_lock
short_description: One operator at a time works on a box
description:
  - Takes the box for the running playbook, or says who holds it and since when. A holder that died is replaced.
  - The action plugin of the same name says who the playbook is.
extends_documentation_fragment: [dflash_box]
options:
  state:
    description: V(held) takes or renews, V(free) gives back.
    type: str
    choices: [held, free]
    default: held
  operation:
    description: What the playbook does, for the one who has to wait.
    type: str
    default: ""
  holder:
    description: Who asks. The action plugin fills this in.
    type: dict
    default: {}
  dead_token:
    description: Token of a holder that the controller saw dead. The action plugin fills this in.
    type: str
    default: ""
attributes:
  check_mode:
    description: The box is not taken; another holder is still a refusal.
    support: full
  diff_mode:
    description: There is nothing to compare.
    support: none
"""

EXAMPLES = r"""
- name: Take the box
  dflash_operator_lock:
    operation: deploy
"""

RETURN = r"""
token:
  description: Name of the hold, for the modules that renew it.
  returned: success
  type: str
  sample: 3f2a91c04b7d1e88
taken_over:
  description: The dead holder that was replaced.
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
    """Take the box, or give it back; neither is a change of what the box is for."""
    want = module.params
    holder = operator_lock.holder_from({**want["holder"], "operation": want["operation"]})
    if want["state"] == "free":
        if not module.check_mode:
            operator_lock.release(layout, holder.token)
        return {"token": "", "taken_over": ""}
    disk.require_writable(layout, create=not module.check_mode)
    if module.check_mode:
        operator_lock.require_free(layout, holder, dead_token=want["dead_token"])
        return {"token": "", "taken_over": ""}
    lock = operator_lock.acquire(layout, holder, dead_token=want["dead_token"])
    return {"token": holder.token, "taken_over": lock["taken_over"]}


if __name__ == "__main__":
    run_module(ARGUMENTS, act)
