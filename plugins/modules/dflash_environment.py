#!/usr/bin/python
"""See DOCUMENTATION."""
from __future__ import annotations

DOCUMENTATION = r"""
module: dflash_environment
short_description: The trainer's environment is there, complete, and as it was built
description:
  - Looks whether the environment of a lock is on the box and compares it with its record, in one call.
  - With O(start=true) what is missing is built by a job that outlives the call; the action plugin of the same name
    sends what lies on the controller, starts the job and prints its lines.
extends_documentation_fragment: [dflash_box, dflash_box.lock]
options:
  uv_lock:
    description: Text of uv's own lock. The action plugin reads it from the file beside O(lock_file).
    type: str
    default: ""
  index_urls:
    description: C(default), C(uv) or a package name to its index; V(none) turns one off.
    type: dict
    default: {}
  find_links:
    description: Folders on the box that hold wheels.
    type: list
    elements: str
    default: []
  wheelhouse:
    description: Folder of wheels on the controller that is pushed to the box. Only the action plugin reads this.
    type: str
    default: ""
  cache_dir:
    description: The cache of uv on the box; empty for C(uv-cache) below the root.
    type: str
    default: ""
  heal:
    description: Build a drifted environment again beside the old one, and switch.
    type: bool
    default: false
  packages:
    description: Install missing Debian packages where root can be had.
    type: bool
    default: true
  self_test_gpus:
    description: After the build of a CUDA environment, compute on every GPU.
    type: bool
    default: true
  full:
    description: Hash every file for the comparison, not only those whose size or time differs.
    type: bool
    default: false
  start:
    description: Start (or attach to) the job that makes what is missing.
    type: bool
    default: false
attributes:
  check_mode:
    description: Nothing is built in check mode; what would be is reported.
    support: full
  diff_mode:
    description: What is there, and what would be.
    support: full
"""

EXAMPLES = r"""
- name: Make the environment of the CPU lock
  dflash_environment:
    profile: cpu
    lock_file: trainer/locks/cpu.lock
"""

RETURN = r"""
env_id:
  description: Name of the environment, a hash over lock, python and platform.
  returned: always
  type: str
  sample: cpu-py311-3f2a91c04b7d
folder:
  description: Its folder.
  returned: always
  type: str
  sample: /opt/dflash/envs/cpu-py311-3f2a91c04b7d
state:
  description: How it stands; V(complete), V(missing) or V(drifted).
  returned: always
  type: str
  sample: complete
python:
  description: The interpreter of a run.
  returned: always
  type: str
  sample: /opt/dflash/envs/cpu-py311-3f2a91c04b7d/bin/python
drift:
  description: What differs from the record.
  returned: when it drifted
  type: list
  sample: [{kind: package, path: flashinfer-0.6.1, detail: "is installed, and is not in the lockfile"}]
ansible_facts:
  description: C(dflash_env) with env_id, folder and python, for the roles that follow.
  returned: always
  type: dict
  sample: {dflash_env: {env_id: cpu-py311-3f2a91c04b7d}}
losses:
  description: What is slower than it could be, in words.
  returned: always
  type: list
  sample: []
packages:
  description: How many packages are installed.
  returned: always
  type: int
  sample: 79
megabytes:
  description: What it takes on the disk.
  returned: always
  type: int
  sample: 1356
wants_uv:
  description: The box's processor when the controller has to bring the wheel of uv, else empty.
  returned: always
  type: str
  sample: x86_64
missing_packages:
  description: Debian packages that a run would miss.
  returned: always
  type: list
  sample: [tmux]
job:
  description: The build job, when one was started.
  returned: with start
  type: dict
  sample: {job_id: env-cpu-py311-3f2a91c04b7d, state: running}
"""

import dataclasses
from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.dflash_module import run_module
from ansible.module_utils.dflash_ops.core import jobs
from ansible.module_utils.dflash_ops.core.paths import Layout
from ansible.module_utils.dflash_ops.environment import build, inspection, interpreters, uv_binary

ARGUMENTS: dict[str, dict[str, Any]] = {
    "profile": {"type": "str", "choices": list(inspection.PROFILES), "required": True},
    "lock": {"type": "str", "default": ""},
    "lock_name": {"type": "str", "default": "lock"},
    "lock_file": {"type": "str", "default": ""},
    "uv_lock": {"type": "str", "default": ""},
    "python": {"type": "str", "default": ""},
    "index_urls": {"type": "dict", "default": {}, "no_log": True},
    "find_links": {"type": "list", "elements": "str", "default": []},
    "wheelhouse": {"type": "str", "default": ""},
    "cache_dir": {"type": "str", "default": ""},
    "heal": {"type": "bool", "default": False},
    "packages": {"type": "bool", "default": True},
    "self_test_gpus": {"type": "bool", "default": True},
    "full": {"type": "bool", "default": False},
    "start": {"type": "bool", "default": False},
}


def act(module: AnsibleModule, layout: Layout) -> dict[str, Any]:
    """Return the module's result: how the environment stands, and the job when one was started.

    Raises:
        OpsError: it cannot be made as asked, or it drifted and is not to be healed.
    """
    want = module.params
    spec = inspection.Spec.of(want, layout)
    status = inspection.inspect(layout, spec, full=want["full"])
    if spec.packages:
        interpreters.require_installable(list(status.missing_packages))
    if status.state == "drifted" and not spec.heal:
        raise inspection.refusal(status)
    if status.state == "missing" or (status.state == "drifted" and spec.heal):
        build.require_possible(layout, spec)
    result: dict[str, Any] = {
        "env_id": status.env_id, "folder": str(status.path), "state": status.state, "losses": list(status.losses),
        "python": str(status.path / "bin/python"), "drift": [dataclasses.asdict(one) for one in status.drift],
        "missing_packages": list(status.missing_packages), "packages": status.packages, "megabytes": status.megabytes,
        "wants_uv": wants_uv(layout, spec, status), "changed": status.needs_work and module.check_mode,
        "needs_work": status.needs_work, "diff": inspection.as_diff(status, spec)}
    result["ansible_facts"] = {"dflash_env": {name: result[name] for name in ("env_id", "folder", "python")}}
    for text in status.losses:
        module.warn(text)
    if want["start"] and status.needs_work and not module.check_mode:
        job = jobs.start_or_attach(layout, f"env-{status.env_id}", build.ENTRY, want,
                                   title=f"build environment {status.env_id}")
        result["job"] = job.as_dict()
    return result


def wants_uv(layout: Layout, spec: inspection.Spec, status: inspection.Status) -> str:
    """Return the processor for which the controller has to fetch uv before the build; empty when it need not."""
    wanted = status.needs_work and not uv_binary.is_here(layout, spec.uv_lock, spec.sources)
    return status.python.machine if wanted else ""


if __name__ == "__main__":
    run_module(ARGUMENTS, act)
