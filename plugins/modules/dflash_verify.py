#!/usr/bin/python
"""See DOCUMENTATION."""

from __future__ import annotations

DOCUMENTATION = r"""
module: dflash_verify
short_description: Audit a run against its record
description:
  - Compares the environment, release, inputs and compile cache with the record of the run, every file by its hash, and
    the running process by the interpreter and torch libraries in use. Lists each difference.
extends_documentation_fragment: [dflash_box, dflash_box.run, dflash_box.answer]
"""

EXAMPLES = r"""
- name: Audit the run
  dflash_verify:
"""

RETURN = r"""
answer:
  description: The same data as the screen, for other programs; also written to O(json_out).
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
