#!/usr/bin/python
"""See DOCUMENTATION."""

from __future__ import annotations

DOCUMENTATION = r"""
module: dflash_prune
short_description: The box holds what is needed and nothing else
description:
  - Removes old runs, environments, releases, caches, archives, ended jobs and leftovers. What is live, current,
    known-good or named by a run that stays is never removed.
extends_documentation_fragment: [dflash_box]
options:
  keep_runs:
    description: How many of the newest runs stay.
    type: int
    default: 10
  remove:
    description: Really remove; else only say what would be.
    type: bool
    default: false
attributes:
  check_mode:
    description: Says what would be removed.
    support: full
  diff_mode:
    description: The things that go.
    support: full
"""

EXAMPLES = r"""
- name: See what could go
  dflash_prune:
    keep_runs: 5
"""

RETURN = r"""
plan:
  description: What goes and what stays, each with the reason.
  returned: success
  type: dict
  sample: {remove: [], keep: []}
"""

from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.dflash_module import run_module
from ansible.module_utils.dflash_ops.core.paths import Layout
from ansible.module_utils.dflash_ops.history import prune

ARGUMENTS: dict[str, dict[str, Any]] = {
    "keep_runs": {"type": "int", "default": 10},
    "remove": {"type": "bool", "default": False},
}


def act(module: AnsibleModule, layout: Layout) -> dict[str, Any]:
    """Plan, show, and remove when that was asked for."""
    want = module.params
    plan = prune.plan(layout, keep_runs=want["keep_runs"])
    told = plan.as_dict()
    done = want["remove"] and not module.check_mode
    if done:
        prune.apply(plan)
    diff = {"before": "".join(f"{path}\n" for path, _ in plan.remove), "after": ""}
    changed = bool(plan.remove) and want["remove"]
    return {"changed": changed, "plan": told, "removed": done, "diff": diff}


if __name__ == "__main__":
    run_module(ARGUMENTS, act)
