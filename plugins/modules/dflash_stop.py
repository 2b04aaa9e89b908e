#!/usr/bin/python
"""See DOCUMENTATION."""

from __future__ import annotations

DOCUMENTATION = r"""
module: dflash_stop
short_description: No run lives, after a checkpoint where there was time for one
description:
  - Asks the trainer to write a checkpoint and leave, waits, escalates to every process that carries the run's mark, and
    proves that no process, GPU memory or port is left. Only the run's own processes and session are touched.
  - A job on the box does it, so a dropped connection leaves nothing half stopped.
extends_documentation_fragment: [dflash_box]
options:
  run:
    description: Id of the run; empty for the one that lives.
    type: str
    default: ""
  timeout:
    description: How long the trainer may take to write its checkpoint.
    type: float
    default: 600
  immediately:
    description: Do not wait for a checkpoint.
    type: bool
    default: false
  job:
    description: End this job (a build, a prewarm) instead of a run; V(all) ends every one. Empty ends none.
    type: str
    default: ""
  for_launch:
    description: A launch follows in the same playbook; when none comes, that is told. Only the plugin reads this.
    type: bool
    default: false
attributes:
  check_mode:
    description: Says what would be stopped.
    support: full
  diff_mode:
    description: The run before and after.
    support: full
"""

EXAMPLES = r"""
- name: Stop training
  dflash_stop:

- name: End a prewarm that nobody wants any more
  dflash_stop:
    job: all
"""

RETURN = r"""
said:
  description: One sentence for the operator.
  returned: success
  type: str
  sample: run 20260131T120000Z-demo stopped, checkpoint of step 120
run_id:
  description: The run.
  returned: when there is one
  type: str
  sample: 20260131T120000Z-demo
start:
  description: What a person types to start it again.
  returned: when there is one
  type: str
  sample: .venv/bin/ansible-playbook relaunch.yml
jobs:
  description: The jobs that were ended.
  returned: with a job
  type: list
  sample: [env-cpu-py311-6271fe4e0890]
"""

from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.dflash_module import run_module
from ansible.module_utils.dflash_ops.core.paths import Layout
from ansible.module_utils.dflash_ops.operations import ensure_stopped

ARGUMENTS: dict[str, dict[str, Any]] = {
    "run": {"type": "str", "default": ""},
    "timeout": {"type": "float", "default": 600.0},
    "immediately": {"type": "bool", "default": False},
    "job": {"type": "str", "default": ""},
    "for_launch": {"type": "bool", "default": False},
}


def act(module: AnsibleModule, layout: Layout) -> dict[str, Any]:
    """Start the stop, end a job, or say that nothing lives."""
    return ensure_stopped.ensure(layout, module.params, check_mode=module.check_mode)


if __name__ == "__main__":
    run_module(ARGUMENTS, act)
