#!/usr/bin/python
"""See DOCUMENTATION."""

from __future__ import annotations

DOCUMENTATION = r"""
module: dflash_compare
short_description: Compare two runs
description:
  - Compares packages, code, configuration, inputs, driver, GPUs, compile cache and speed of two runs, and lists the
    differences with the most likely cause of a changed speed first.
extends_documentation_fragment: [dflash_box, dflash_box.answer]
options:
  run_a:
    description: Id of the first run; empty for the known-good one.
    type: str
    default: ""
  run_b:
    description: Id of the second run; empty for the current one.
    type: str
    default: ""
"""

EXAMPLES = r"""
- name: Compare the current run with the known-good one
  dflash_compare:
"""

RETURN = r"""
answer:
  description: The same data as the screen, for other programs; also written to O(json_out).
  returned: success
  type: dict
  sample: {ok: false, run_a: 20260131T120000Z-demo, run_b: 20260201T090000Z-demo, differences: [], problems: []}
"""

from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.dflash_module import ANSWER, run_module
from ansible.module_utils.dflash_ops.core.paths import Layout
from ansible.module_utils.dflash_ops.operations import compare_runs

ARGUMENTS: dict[str, dict[str, Any]] = {
    **ANSWER,
    "run_a": {"type": "str", "default": ""},
    "run_b": {"type": "str", "default": ""},
}


def act(module: AnsibleModule, layout: Layout) -> dict[str, Any]:
    """Compare two runs."""
    answer = compare_runs.compare_runs(layout, module.params["run_a"], module.params["run_b"])
    return {"answer": answer}


if __name__ == "__main__":
    run_module(ARGUMENTS, act)
