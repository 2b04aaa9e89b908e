#!/usr/bin/python
"""See DOCUMENTATION."""

from __future__ import annotations

DOCUMENTATION = r"""
module: dflash_runs
short_description: The runs of a box
description:
  - Lists runs with label, start, duration, steps, best speed and end state.
extends_documentation_fragment: [dflash_box, dflash_box.answer]
options:
  last:
    description: Only the newest so many; 0 for all.
    type: int
    default: 0
"""

EXAMPLES = r"""
- name: List the runs
  dflash_runs:
    root: /opt/dflash
"""

RETURN = r"""
answer:
  description: What other programs read; O(json_out) gets the same.
  returned: success
  type: dict
  sample: {ok: true, runs: [{run_id: 20260131T120000Z-demo, state: finished, step: 400}], problems: []}
screen:
  description: What a person reads.
  returned: success
  type: list
  sample: ["RUN  START (UTC)  TOOK"]
"""

from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.dflash_module import ANSWER, run_module
from ansible.module_utils.dflash_ops import history, screens
from ansible.module_utils.dflash_ops.paths import Layout

ARGUMENTS: dict[str, dict[str, Any]] = {
    **ANSWER,
    "last": {"type": "int", "default": 0},
}


def act(module: AnsibleModule, layout: Layout) -> dict[str, Any]:
    """List the runs."""
    listed = history.listing(layout, last=module.params["last"])
    return {"answer": {"ok": True, "problems": [], "runs": listed}, "screen": screens.runs_screen(listed)}


if __name__ == "__main__":
    run_module(ARGUMENTS, act)
