#!/usr/bin/python
"""See DOCUMENTATION."""

from __future__ import annotations

DOCUMENTATION = r"""
module: dflash_prune
short_description: Remove old runs and what only they needed
description:
  - Removes old runs, environments, releases, caches, archives, ended jobs and folders of interrupted builds. Nothing
    is removed that is running, current, known-good or used by a kept run.
extends_documentation_fragment: [dflash_box]
options:
  keep_runs:
    description: Number of newest runs to keep.
    type: int
    default: 10
  remove:
    description: Remove the paths; otherwise only list them.
    type: bool
    default: false
attributes:
  check_mode:
    description: Lists the paths that would be removed.
    support: full
  diff_mode:
    description: Shows the removed paths.
    support: full
"""

EXAMPLES = r"""
- name: List the paths that could be removed
  dflash_prune:
    keep_runs: 5
"""

RETURN = r"""
plan:
  description: Removed and kept paths, each with the reason.
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
    """Plan the removal, and apply it when `remove` is set."""
    params = module.params
    plan = prune.plan(layout, keep_runs=params["keep_runs"])
    listed = plan.as_dict()
    done = params["remove"] and not module.check_mode
    if done:
        prune.apply(plan)
    diff = {"before": "".join(f"{path}\n" for path, _ in plan.remove), "after": ""}
    changed = bool(plan.remove) and params["remove"]
    return {"changed": changed, "plan": listed, "removed": done, "diff": diff}


if __name__ == "__main__":
    run_module(ARGUMENTS, act)
