#!/usr/bin/python
"""See DOCUMENTATION."""
from __future__ import annotations

DOCUMENTATION = r"""
module: dflash_job
short_description: Follow or stop a long task on the box
description:
  - Says how a job stands, waiting a moment for something new. The action plugin of the same name repeats the call and
    prints each line as it is said, until the job ends.
  - A job lives in C(jobs/<job_id>/) below the root and goes on without any connection.
extends_documentation_fragment: [dflash_box]
options:
  job_id:
    description: Name of the job.
    type: str
    required: true
  offset:
    description: Bytes of its lines that the caller has seen.
    type: int
    default: 0
  wait:
    description: Seconds to wait for a new line or the end.
    type: float
    default: 0
  state:
    description: V(followed) looks, V(stopped) ends the job and its processes.
    type: str
    choices: [followed, stopped]
    default: followed
attributes:
  check_mode:
    description: Nothing is stopped in check mode.
    support: full
  diff_mode:
    description: There is nothing to compare.
    support: none
"""

EXAMPLES = r"""
- name: Follow the environment's build
  dflash_job:
    job_id: env-3f2a91c04b7d
"""

RETURN = r"""
job:
  description: The job as it stands.
  returned: always
  type: dict
  sample: {job_id: env-3f2a91c04b7d, state: running, elapsed: 12.3, lines: ["34/71 packages, 412 MB"], offset: 210}
"""

from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.dflash_module import run_module
from ansible.module_utils.dflash_ops.core import jobs
from ansible.module_utils.dflash_ops.core.paths import Layout

ARGUMENTS: dict[str, dict[str, Any]] = {
    "job_id": {"type": "str", "required": True},
    "offset": {"type": "int", "default": 0},
    "wait": {"type": "float", "default": 0.0},
    "state": {"type": "str", "choices": ["followed", "stopped"], "default": "followed"},
}


def act(module: AnsibleModule, layout: Layout) -> dict[str, Any]:
    """Look at the job, after ending it when asked to."""
    want = module.params
    stopped = want["state"] == "stopped" and not module.check_mode and jobs.stop_job(layout, want["job_id"])
    job = jobs.poll(layout, want["job_id"], offset=want["offset"], wait=want["wait"])
    return {"changed": stopped, "job": job.as_dict()}


if __name__ == "__main__":
    run_module(ARGUMENTS, act)
