#!/usr/bin/python
"""See DOCUMENTATION."""

from __future__ import annotations

DOCUMENTATION = r"""
module: dflash_compile_cache
short_description: The compile cache is warm, proved by a process of its own
description:
  - Says how warm the cache is for a configuration on this box. With O(start=true) what is missing is compiled and
    proved by a job that outlives the call; the action plugin of the same name prints its lines.
  - Beside a living run nothing is compiled.
extends_documentation_fragment: [dflash_box, dflash_box.selection]
options:
  start:
    description: Start (or attach to) the job that warms the cache.
    type: bool
    default: true
  wipe:
    description: Make the cache anew; the old one stays until the new one is proved.
    type: bool
    default: false
  archive:
    description: Pack the proved cache into one file with a checksum.
    type: bool
    default: false
  restore:
    description: Archive on the box to restore first; it is proved again. A cache that is warm needs none.
    type: str
    default: ""
  restore_required:
    description: Refuse when the archive does not fit or is damaged. Else that is said, and all of it compiled.
    type: bool
    default: true
  if_running:
    description: What a living run means for a cache that is not warm.
    type: str
    choices: [refuse, skip]
    default: refuse
attributes:
  check_mode:
    description: Nothing is compiled; what would be is reported.
    support: full
  diff_mode:
    description: How warm the cache is, and would be.
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
  description: Name of the cache, a hash over environment and hardware.
  returned: success
  type: str
  sample: 9c1f03aa77de
state:
  description: How warm it is; V(warm), V(cold), V(partial), V(damaged) or V(foreign).
  returned: success
  type: str
  sample: warm
proof:
  description: What the second process said.
  returned: when warm
  type: dict
  sample: {cold_seconds: 92.1, warm_seconds: 11.3, misses: 0}
said:
  description: One sentence for the operator.
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
    """Look at the cache, and start what is needed."""
    return ensure_cache.ensure(layout, module.params, check_mode=module.check_mode)


if __name__ == "__main__":
    run_module(ARGUMENTS, act)
