#!/usr/bin/python
"""See DOCUMENTATION."""

from __future__ import annotations

DOCUMENTATION = r"""
module: dflash_report_info
short_description: Report on one run
description:
  - Returns the record, metrics, checkpoints, problems and last log lines of a run, as data and as Markdown.
extends_documentation_fragment: [dflash_box, dflash_box.run, dflash_box.answer]
"""

EXAMPLES = r"""
- name: Report on the run
  dflash_report_info:
"""

RETURN = r"""
answer:
  description: The same data as the screen, for other programs; also written to O(json_out).
  returned: success
  type: dict
  sample: {ok: true, run_id: 20260131T120000Z-demo, state: finished, problems: []}
"""

from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.dflash_module import ANSWER, RUN, run_module
from ansible.module_utils.dflash_ops.core.paths import Layout
from ansible.module_utils.dflash_ops.history import run_history
from ansible.module_utils.dflash_ops.run import runs

ARGUMENTS: dict[str, dict[str, Any]] = {**ANSWER, **RUN}


def act(module: AnsibleModule, layout: Layout) -> dict[str, Any]:
    """Report on one run."""
    answer = run_history.report(layout, runs.require(layout, module.params["run"]))
    return {"answer": answer}


if __name__ == "__main__":
    run_module(ARGUMENTS, act)
