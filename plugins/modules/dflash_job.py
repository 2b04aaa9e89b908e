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
options:
  root:
    description: Folder of everything on the box (C(dflash_root)).
    type: str
    required: true
  workspace:
    description: Mount that holds the runs (C(dflash_workspace)).
    type: str
    default: ""
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
  lock_token:
    description: The operator lock to renew with this call.
    type: str
    default: ""
attributes:
  check_mode:
    description: Nothing is stopped in check mode.
    support: full
  diff_mode:
    description: There is nothing to compare.
    support: none
author: DFlash operations
"""

EXAMPLES = r"""
- name: Follow the environment's build
  dflash_job:
    root: "{{ dflash_root }}"
    job_id: env-3f2a91c04b7d
"""

RETURN = r"""
job:
  description: The job as it stands.
  returned: always
  type: dict
  sample: {job_id: env-3f2a91c04b7d, state: running, elapsed: 12.3, lines: ["34/71 packages, 412 MB"], offset: 210}
"""

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.dflash_ops import jobs, operator_lock
from ansible.module_utils.dflash_ops.errors import OpsError
from ansible.module_utils.dflash_ops.paths import Layout

ARGUMENTS = {
    "root": {"type": "str", "required": True},
    "workspace": {"type": "str", "default": ""},
    "job_id": {"type": "str", "required": True},
    "offset": {"type": "int", "default": 0},
    "wait": {"type": "float", "default": 0.0},
    "state": {"type": "str", "choices": ["followed", "stopped"], "default": "followed"},
    "lock_token": {"type": "str", "default": "", "no_log": False},
}


def main() -> None:
    """Translate arguments into one look at the job."""
    module = AnsibleModule(argument_spec=ARGUMENTS, supports_check_mode=True)
    want = module.params
    layout = Layout.of(want["root"], want["workspace"])
    changed = False
    try:
        if want["lock_token"]:
            operator_lock.renew(layout, want["lock_token"])
        if want["state"] == "stopped" and not module.check_mode:
            changed = jobs.stop_job(layout, want["job_id"])
        job = jobs.poll(layout, want["job_id"], offset=want["offset"], wait=want["wait"])
    except OpsError as error:
        module.fail_json(msg=str(error), **error.facts)
    module.exit_json(changed=changed, job=job.as_dict())


if __name__ == "__main__":
    main()
