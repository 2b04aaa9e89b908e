#!/usr/bin/python
"""See DOCUMENTATION."""
from __future__ import annotations

DOCUMENTATION = r"""
module: dflash_environment
short_description: Build the trainer's environment and verify that it is unchanged
description:
  - Checks in one call whether the environment of a lockfile is on the box and compares it with its record.
  - With O(start=true) a job on the box builds it if it is missing or drifted. The job keeps running when the connection
    drops. The action plugin of the same name copies files from the controller, starts the job and prints its progress.
extends_documentation_fragment: [dflash_box, dflash_box.lock]
options:
  uv_lock:
    description: Text of uv's own lockfile. The action plugin reads C(uv.lock) from the folder of O(lock_file).
    type: str
    default: ""
  index_urls:
    description: Index URL by C(default), C(uv) or package name; V(none) disables an index.
    type: dict
    default: {}
  find_links:
    description: Folders on the box that contain wheels.
    type: list
    elements: str
    default: []
  wheelhouse:
    description: Folder of wheels on the controller to copy to the box. Only the action plugin reads this.
    type: str
    default: ""
  cache_dir:
    description: uv's cache on the box; empty for C(uv-cache) below the root.
    type: str
    default: ""
  heal:
    description: Rebuild a drifted environment and replace the old one atomically.
    type: bool
    default: false
  install_packages:
    description: Install missing Debian packages if root access is available.
    type: bool
    default: true
  self_test_gpus:
    description: Compute on every GPU in the self-test of a CUDA environment.
    type: bool
    default: true
  full:
    description: Hash every file, not only those with a different size or time.
    type: bool
    default: false
  start:
    description: Start the build job if the environment is missing or drifted, or attach to a running one.
    type: bool
    default: false
attributes:
  check_mode:
    description: Reports the planned build without building.
    support: full
  diff_mode:
    description: Shows the state before and after.
    support: full
"""

EXAMPLES = r"""
- name: Build the environment of the CPU lockfile
  dflash_environment:
    profile: cpu
    lock_file: trainer/locks/cpu.lock
"""

RETURN = r"""
env_id:
  description: Name of the environment, with a hash over lockfile, Python version and platform.
  returned: always
  type: str
  sample: cpu-py311-3f2a91c04b7d
folder:
  description: Folder of the environment.
  returned: always
  type: str
  sample: /opt/dflash/envs/cpu-py311-3f2a91c04b7d
state:
  description: State before the build; V(complete), V(missing) or V(drifted).
  returned: always
  type: str
  sample: complete
python:
  description: Interpreter of a run.
  returned: always
  type: str
  sample: /opt/dflash/envs/cpu-py311-3f2a91c04b7d/bin/python
drift:
  description: Differences from the record.
  returned: always
  type: list
  sample: [{kind: package, path: flashinfer-0.6.1, detail: "is installed, and is not in the lockfile"}]
ansible_facts:
  description: C(dflash_env) with env_id, folder and python, for later roles.
  returned: always
  type: dict
  sample: {dflash_env: {env_id: cpu-py311-3f2a91c04b7d}}
missing_fast_paths:
  description: One sentence for each missing package with faster kernels.
  returned: always
  type: list
  sample: []
packages:
  description: Number of installed packages.
  returned: always
  type: int
  sample: 79
megabytes:
  description: Size on disk.
  returned: always
  type: int
  sample: 1356
fetch_uv_for:
  description: The box's processor if the controller has to download the wheel of uv; empty otherwise.
  returned: always
  type: str
  sample: x86_64
missing_packages:
  description: Debian packages that a run needs and the box lacks.
  returned: always
  type: list
  sample: [tmux]
job:
  description: The build job if one was started.
  returned: with O(start=true)
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
    "install_packages": {"type": "bool", "default": True},
    "self_test_gpus": {"type": "bool", "default": True},
    "full": {"type": "bool", "default": False},
    "start": {"type": "bool", "default": False},
}


def act(module: AnsibleModule, layout: Layout) -> dict[str, Any]:
    """Return the module's result: the state of the environment, and the job if one was started.

    Raises:
        OpsError: the environment cannot be built, or it drifted and `heal` is off.
    """
    params = module.params
    spec = inspection.Spec.from_params(params, layout)
    status = inspection.inspect(layout, spec, full=params["full"])
    if spec.install_packages:
        interpreters.require_installable(list(status.missing_packages))
    if status.state == "drifted" and not spec.heal:
        raise inspection.drift_error(status)
    if status.state != "complete":
        build.require_sources_and_space(layout, spec)
    result: dict[str, Any] = {
        "env_id": status.env_id,
        "folder": str(status.path),
        "state": status.state,
        "missing_fast_paths": list(status.missing_fast_paths),
        "python": str(status.path / "bin/python"),
        "drift": [dataclasses.asdict(difference) for difference in status.drift],
        "missing_packages": list(status.missing_packages),
        "packages": status.packages,
        "megabytes": status.megabytes,
        "fetch_uv_for": fetch_uv_for(layout, spec, status),
        "changed": status.needs_work and module.check_mode,
        "needs_work": status.needs_work,
        "diff": inspection.as_diff(status, spec),
    }
    result["ansible_facts"] = {"dflash_env": {name: result[name] for name in ("env_id", "folder", "python")}}
    for text in status.missing_fast_paths:
        module.warn(text)
    if params["start"] and status.needs_work and not module.check_mode:
        title = f"build environment {status.env_id}"
        job = jobs.start_or_attach(layout, f"env-{status.env_id}", build.ENTRY, params, title=title)
        result["job"] = job.as_dict()
    return result


def fetch_uv_for(layout: Layout, spec: inspection.Spec, status: inspection.Status) -> str:
    """Return the processor for which the controller has to download uv before the build; empty if uv is available."""
    needed = status.needs_work and not uv_binary.is_available(layout, spec.uv_lock, spec.sources)
    return status.python.machine if needed else ""


if __name__ == "__main__":
    run_module(ARGUMENTS, act)
