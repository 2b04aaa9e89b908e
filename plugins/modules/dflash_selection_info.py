#!/usr/bin/python
"""See DOCUMENTATION."""
from __future__ import annotations

DOCUMENTATION = r"""
module: dflash_selection_info
short_description: Names of the requested environment and release
description:
  - Returns both names without comparing their files with their records, and whether inputs and compile cache are ready,
    in one call. The modules that use environment and release check that they exist and are unchanged.
extends_documentation_fragment: [dflash_box, dflash_box.lock, dflash_box.selection]
options:
  version:
    description: Commit, branch or tag of the checkout. Only the action plugin reads this.
    type: str
    default: HEAD
  allow_dirty:
    description: Allow uncommitted files of trainer/. Only the action plugin reads this.
    type: bool
    default: false
attributes:
  check_mode:
    description: Only the resolved configuration is kept for later tasks, and not in check mode.
    support: full
  diff_mode:
    description: The module makes no change to compare.
    support: none
"""

EXAMPLES = r"""
- name: Resolve environment and release
  dflash_selection_info:
    profile: cpu
    lock_file: trainer/locks/cpu.lock
"""

RETURN = r"""
ansible_facts:
  description: >-
    C(dflash_env) with env_id, folder and python, C(dflash_release) with release_id and folder, and C(dflash_ready)
    with two booleans, for inputs that match their records and for a warm compile cache.
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
from ansible.module_utils.dflash_ops.operations.ensure_run import selection_from

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

# Options of an environment build, which this module does not need.
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
        OpsError: the lockfile is incomplete, or the box has no Python for it.
    """
    params = module.params
    spec = inspection.Spec.from_params({**NO_BUILD, **params}, layout)
    env_id = inspection.environment_id(spec, inspection.find_python(spec))
    env, release = layout.env(env_id), layout.release(params["release_id"])
    selection = selection_from({**params, "env_id": env_id})
    return {
        "ansible_facts": {
            "dflash_env": {"env_id": env_id, "folder": str(env), "python": str(env / "bin/python")},
            "dflash_release": {"release_id": params["release_id"], "folder": str(release)},
            "dflash_ready": readiness.check(layout, selection, store=not module.check_mode),
        }
    }


if __name__ == "__main__":
    run_module(ARGUMENTS, act)
