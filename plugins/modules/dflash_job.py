#!/usr/bin/python
"""Follow or stop a job on the box."""
from __future__ import annotations

DOCUMENTATION = r"""
module: dflash_job
short_description: Follow or stop a job on the box
description:
  - Returns the state of a job, after waiting for a new line. The action plugin of the same name repeats the call and
    prints each new line until the job ends.
  - A job has its files in C(jobs/<job_id>/) below the root and keeps running without a connection.
extends_documentation_fragment: [dflash_box]
options:
  job_id:
    description: Name of the job.
    type: str
    required: true
  offset:
    description: Bytes of the job's lines that the caller has already read.
    type: int
    default: 0
  wait:
    description: Seconds to wait for a new line or the end of the job.
    type: float
    default: 0
  state:
    description: V(followed) reads the state, V(stopped) terminates the job and its processes.
    type: str
    choices: [followed, stopped]
    default: followed
attributes:
  check_mode:
    description: Nothing is stopped in check mode.
    support: full
  diff_mode:
    description: The module does not report a diff.
    support: none
"""

EXAMPLES = r"""
- name: Follow the build of an environment
  dflash_job:
    job_id: env-3f2a91c04b7d
"""

RETURN = r"""
job:
  description: State of the job and its new lines.
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
    """Return the state of the job, after stopping it if requested."""
    params = module.params
    stopped = params["state"] == "stopped" and not module.check_mode and jobs.stop_job(layout, params["job_id"])
    job = jobs.poll(layout, params["job_id"], offset=params["offset"], wait=params["wait"])
    return {"changed": stopped, "job": job.as_dict()}


if __name__ == "__main__":
    run_module(ARGUMENTS, act)
