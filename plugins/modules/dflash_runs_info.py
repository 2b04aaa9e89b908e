#!/usr/bin/python
"""See DOCUMENTATION."""

from __future__ import annotations

DOCUMENTATION = r"""
module: dflash_runs_info
short_description: List the runs of a box
description:
  - Returns the runs with label, start, duration, step, best speed and state.
extends_documentation_fragment: [dflash_box, dflash_box.answer]
options:
  last:
    description: Number of newest runs to list; 0 for all.
    type: int
    default: 0
"""

EXAMPLES = r"""
- name: List the runs
  dflash_runs_info:
"""

RETURN = r"""
answer:
  description: The same data as the screen, for other programs; also written to O(json_out).
  returned: success
  type: dict
  sample: {ok: true, runs: [{run_id: 20260131T120000Z-demo, state: finished, step: 400}], problems: []}
"""

from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.dflash_module import ANSWER, run_module
from ansible.module_utils.dflash_ops.core.paths import Layout
from ansible.module_utils.dflash_ops.history import run_history

ARGUMENTS: dict[str, dict[str, Any]] = {
    **ANSWER,
    "last": {"type": "int", "default": 0},
}


def act(module: AnsibleModule, layout: Layout) -> dict[str, Any]:
    """List the runs."""
    listed = run_history.listing(layout, last=module.params["last"])
    return {"answer": {"ok": True, "problems": [], "runs": listed}}


if __name__ == "__main__":
    run_module(ARGUMENTS, act)
