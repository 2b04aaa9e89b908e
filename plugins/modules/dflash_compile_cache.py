#!/usr/bin/python
"""Warm the compile cache of a configuration."""

from __future__ import annotations

DOCUMENTATION = r"""
module: dflash_compile_cache
short_description: Warm the compile cache and check it in a second process
description:
  - Reports the state of the cache for a configuration on this box. With O(start=true), a detached job compiles the
    missing shapes and checks the cache in a second process; the action plugin of the same name prints its lines.
  - Nothing is compiled while a run is training.
extends_documentation_fragment: [dflash_box, dflash_box.selection]
options:
  start:
    description: Start (or attach to) the job that warms the cache.
    type: bool
    default: true
  wipe:
    description: Rebuild the cache. The old one is kept until the new one is checked.
    type: bool
    default: false
  archive:
    description: Pack the checked cache into one archive with a checksum.
    type: bool
    default: false
  restore:
    description: Archive on the box to restore and check first. Ignored when the cache is warm.
    type: str
    default: ""
  restore_required:
    description: Fail when the archive does not fit or is damaged. Otherwise report the reason and compile everything.
    type: bool
    default: true
  if_running:
    description: Fail, or leave the cache as it is, when a run is training and the cache is not warm.
    type: str
    choices: [refuse, skip]
    default: refuse
attributes:
  check_mode:
    description: Reports the state of the cache without compiling anything.
    support: full
  diff_mode:
    description: State of the cache before and after.
    support: full
"""

EXAMPLES = r"""
- name: Warm the compile cache
  dflash_compile_cache:
    env_id: cpu-py311-3f2a91c04b7d
    release_id: 5d646f9
    config: demo.toml
"""

RETURN = r"""
cache_id:
  description: Id of the cache, a hash of the environment and the hardware.
  returned: success
  type: str
  sample: 9c1f03aa77de
state:
  description: State of the cache; V(warm), V(cold), V(partial), V(damaged) or V(foreign).
  returned: success
  type: str
  sample: warm
cache_check:
  description: Times and counters of the second process.
  returned: when warm
  type: dict
  sample: {cold_seconds: 92.1, warm_seconds: 11.3, misses: 0}
message:
  description: Result in one sentence.
  returned: success
  type: str
  sample: cache 9c1f03aa77de is warm
"""

from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.dflash_module import SELECTION, run_module
from ansible.module_utils.dflash_ops.core.paths import Layout
from ansible.module_utils.dflash_ops.operations import ensure_cache

ARGUMENTS: dict[str, dict[str, Any]] = {
    **SELECTION,
    "start": {"type": "bool", "default": True},
    "wipe": {"type": "bool", "default": False},
    "archive": {"type": "bool", "default": False},
    "restore": {"type": "str", "default": ""},
    "restore_required": {"type": "bool", "default": True},
    "if_running": {"type": "str", "choices": ["refuse", "skip"], "default": "refuse"},
}


def act(module: AnsibleModule, layout: Layout) -> dict[str, Any]:
    """Inspect the cache and start the job that is needed."""
    return ensure_cache.ensure(layout, module.params, check_mode=module.check_mode)


if __name__ == "__main__":
    run_module(ARGUMENTS, act)
