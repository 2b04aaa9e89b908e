#!/usr/bin/python
"""See DOCUMENTATION."""

from __future__ import annotations

DOCUMENTATION = r"""
module: dflash_stop
short_description: Stop the running run after a checkpoint
description:
  - Sends SIGTERM to the trainer, waits for its checkpoint, escalates to every process of the run, and verifies that no
    process, GPU memory or port is left. Only processes and the session of the run are affected.
  - The stop is a job on the box, so that a dropped connection does not leave a run half stopped.
extends_documentation_fragment: [dflash_box]
options:
  run:
    description: Id of the run; empty for the running run.
    type: str
    default: ""
  timeout:
    description: Time limit for the trainer's checkpoint, in seconds.
    type: float
    default: 600
  immediately:
    description: Do not wait for a checkpoint.
    type: bool
    default: false
  job:
    description: Cancel this job (a build, a prewarm) instead of stopping a run; V(all) cancels every job.
    type: str
    default: ""
  for_launch:
    description: Report when no launch follows in the same playbook. Only the action plugin reads this.
    type: bool
    default: false
attributes:
  check_mode:
    description: Reports what would be stopped.
    support: full
  diff_mode:
    description: The run before and after.
    support: full
"""

EXAMPLES = r"""
- name: Stop training
  dflash_stop:

- name: Cancel all jobs, such as a prewarm
  dflash_stop:
    job: all
"""

RETURN = r"""
message:
  description: Result in one sentence.
  returned: success
  type: str
  sample: run 20260131T120000Z-demo stopped, checkpoint of step 120
run_id:
  description: Id of the run; empty when none was ever launched.
  returned: without a job
  type: str
  sample: 20260131T120000Z-demo
start:
  description: Command that starts the run's configuration again.
  returned: when a run exists
  type: str
  sample: .venv/bin/ansible-playbook relaunch.yml
jobs:
  description: The cancelled jobs.
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
    """Start the stop of a run, cancel a job, or report that no run is running."""
    return ensure_stopped.ensure(layout, module.params, check_mode=module.check_mode)


if __name__ == "__main__":
    run_module(ARGUMENTS, act)
