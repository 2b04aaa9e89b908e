#!/usr/bin/python
"""See DOCUMENTATION."""
from __future__ import annotations

DOCUMENTATION = r"""
module: dflash_selection_info
short_description: The names of the environment and the release that are asked for
description:
  - Names both without comparing them with their records, and says which later steps have no work left, in one call.
    What uses them looks whether they are there and unchanged.
extends_documentation_fragment: [dflash_box, dflash_box.lock, dflash_box.selection]
options:
  version:
    description: Commit, branch or tag of the checkout. Only the action plugin reads this.
    type: str
    default: HEAD
  allow_dirty:
    description: Take files of trainer/ that are not committed. Only the action plugin reads this.
    type: bool
    default: false
attributes:
  check_mode:
    description: Nothing is ever changed.
    support: full
  diff_mode:
    description: There is nothing to compare.
    support: none
"""

EXAMPLES = r"""
- name: Name environment and release
  dflash_selection_info:
    profile: cpu
    lock_file: trainer/locks/cpu.lock
"""

RETURN = r"""
ansible_facts:
  description: >-
    C(dflash_env) with env_id, folder and python, C(dflash_release) with release_id and folder, and C(dflash_ready)
    that says whether the inputs are the recorded ones and the compile cache is warm.
  returned: always
  type: dict
  sample: {dflash_env: {env_id: cpu-py311-3f2a91c04b7d}, dflash_ready: {inputs: true, cache: true}}
"""

from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.dflash_module import SELECTION, run_module
from ansible.module_utils.dflash_ops.core.paths import Layout
from ansible.module_utils.dflash_ops.environment import inspection
from ansible.module_utils.dflash_ops.operations import readiness
from ansible.module_utils.dflash_ops.operations.ensure_run import selection_of

ARGUMENTS: dict[str, dict[str, Any]] = {
    "profile": {"type": "str", "choices": list(inspection.PROFILES), "required": True},
    "lock_file": {"type": "str", "default": ""},
    "lock": {"type": "str", "default": ""},
    "lock_name": {"type": "str", "default": "lock"},
    "python": {"type": "str", "default": ""},
    "version": {"type": "str", "default": "HEAD"},
    "allow_dirty": {"type": "bool", "default": False},
    **SELECTION,
}

# What only a build reads.
NO_BUILD: dict[str, Any] = {
    "uv_lock": "",
    "index_urls": {},
    "find_links": [],
    "cache_dir": "",
    "heal": False,
    "install_packages": False,
    "self_test_gpus": False,
}


def act(module: AnsibleModule, layout: Layout) -> dict[str, Any]:
    """Return the facts.

    Raises:
        OpsError: the lock is not complete, or the box has no python for it.
    """
    want = module.params
    spec = inspection.Spec.from_params({**NO_BUILD, **want}, layout)
    env_id = inspection.environment_id(spec, inspection.find_python(spec))
    env, release = layout.env(env_id), layout.release(want["release_id"])
    return {
        "ansible_facts": {
            "dflash_env": {"env_id": env_id, "folder": str(env), "python": str(env / "bin/python")},
            "dflash_release": {"release_id": want["release_id"], "folder": str(release)},
            "dflash_ready": readiness.of(layout, selection_of({**want, "env_id": env_id})),
        }
    }


if __name__ == "__main__":
    run_module(ARGUMENTS, act)
