#!/usr/bin/python
"""See DOCUMENTATION."""

from __future__ import annotations

DOCUMENTATION = r"""
module: dflash_rollback
short_description: Choose the target of a rollback
description:
  - Chooses the last known-good run that is not the current one, or the named run, checks that its environment, release
    and inputs are on the box, and returns its launch options. The replaced run is marked bad.
  - Stops and launches nothing; M(dflash_run) launches the target and marks the replaced run.
extends_documentation_fragment: [dflash_box]
options:
  run:
    description: Id of the target run; empty for the last known-good run.
    type: str
    default: ""
  secrets:
    description: Secrets of the later launch; only their names are checked.
    type: dict
    default: {}
attributes:
  check_mode:
    description: Only the resolved configuration is kept for later tasks, and not in check mode.
    support: full
  diff_mode:
    description: The current run and the target.
    support: full
"""

EXAMPLES = r"""
- name: Choose the target of a rollback
  dflash_rollback:
"""

RETURN = r"""
target:
  description: Launch options of the target; empty when there is nothing to do.
  returned: success
  type: dict
  sample: {run_id: 20260131T120000Z-demo, env_id: cpu-py311-3f2a91c04b7d, release_id: 5d646f9, config: demo.toml}
bad:
  description: Runs that will be marked bad.
  returned: success
  type: list
  sample: [20260201T090000Z-demo]
message:
  description: Result in one sentence.
  returned: success
  type: str
  sample: rolling back to 20260131T120000Z-demo
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
    return rollback.plan(layout, module.params["run"], module.params["secrets"], check_mode=module.check_mode)


if __name__ == "__main__":
    run_module(ARGUMENTS, act)
