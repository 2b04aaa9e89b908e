#!/usr/bin/python
"""See DOCUMENTATION."""

from __future__ import annotations

DOCUMENTATION = r"""
module: dflash_rollback
short_description: What a rollback goes back to
description:
  - Chooses the last known-good run that is not the current one, or the named one, proves that environment, release and
    inputs of it are on the box, and returns what a launch needs. A run that is left this way is marked bad.
  - Changes nothing: M(dflash_run) launches the target and marks what was left.
extends_documentation_fragment: [dflash_box]
options:
  run:
    description: Id of the run to go back to; empty for the last known-good one.
    type: str
    default: ""
  secrets:
    description: Secrets that the launch will get; none is kept here.
    type: dict
    default: {}
attributes:
  check_mode:
    description: Nothing is changed at any time.
    support: full
  diff_mode:
    description: What lives before and after.
    support: full
"""

EXAMPLES = r"""
- name: Choose what to go back to
  dflash_rollback:
"""

RETURN = r"""
target:
  description: What a launch needs; empty when there is nothing to do.
  returned: success
  type: dict
  sample: {run_id: 20260131T120000Z-demo, env_id: cpu-py311-3f2a91c04b7d, release_id: 5d646f9, config: demo.toml}
bad:
  description: Runs that will be marked bad.
  returned: success
  type: list
  sample: [20260201T090000Z-demo]
said:
  description: One sentence for the operator.
  returned: success
  type: str
  sample: going back to 20260131T120000Z-demo
"""

from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.dflash_module import run_module
from ansible.module_utils.dflash_ops.core.paths import Layout
from ansible.module_utils.dflash_ops.operations import rollback

ARGUMENTS: dict[str, dict[str, Any]] = {
    "run": {"type": "str", "default": ""},
    "secrets": {"type": "dict", "default": {}, "no_log": True},
}


def act(module: AnsibleModule, layout: Layout) -> dict[str, Any]:
    """Plan a rollback."""
    return rollback.plan(layout, module.params["run"], module.params["secrets"])


if __name__ == "__main__":
    run_module(ARGUMENTS, act)
