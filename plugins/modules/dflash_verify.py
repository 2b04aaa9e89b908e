#!/usr/bin/python
"""See DOCUMENTATION."""

from __future__ import annotations

DOCUMENTATION = r"""
module: dflash_verify
short_description: Everything of a run is what its record says
description:
  - Compares environment, release, inputs, compile cache and the running process (interpreter and torch file really in
    use) with the record of the run, every file with its hash, and lists each difference.
extends_documentation_fragment: [dflash_box, dflash_box.run, dflash_box.answer]
"""

EXAMPLES = r"""
- name: Audit the run
  dflash_verify:
"""

RETURN = r"""
answer:
  description: What other programs read; O(json_out) gets the same.
  returned: success
  type: dict
  sample: {ok: true, run_id: 20260131T120000Z-demo, checks: {environment: ok, release: ok}, problems: []}
"""

from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.dflash_module import ANSWER, RUN, run_module
from ansible.module_utils.dflash_ops.core.paths import Layout
from ansible.module_utils.dflash_ops.history import verify

ARGUMENTS: dict[str, dict[str, Any]] = {**ANSWER, **RUN}


def act(module: AnsibleModule, layout: Layout) -> dict[str, Any]:
    """Audit one run."""
    answer = verify.audit(layout, module.params["run"])
    return {"answer": answer}


if __name__ == "__main__":
    run_module(ARGUMENTS, act)
