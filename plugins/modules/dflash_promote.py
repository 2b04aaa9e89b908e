#!/usr/bin/python
"""See DOCUMENTATION."""

from __future__ import annotations

DOCUMENTATION = r"""
module: dflash_promote
short_description: Record a run that passed its health check as known-good
description:
  - Records environment, release, cache archive, configuration, fingerprints and speed of a run as known-good. Fails
    for a run that failed, is below its expected speed, trains uncommitted code, or was rolled back.
extends_documentation_fragment: [dflash_box, dflash_box.run]
options:
  operator:
    description: Person who promotes, for the record.
    type: str
    default: ""
  allow_dirty:
    description: Allow a run whose release is not a commit.
    type: bool
    default: false
attributes:
  check_mode:
    description: All checks run, nothing is recorded.
    support: full
  diff_mode:
    description: The known-good run before and after.
    support: full
"""

EXAMPLES = r"""
- name: Keep this run as known-good
  dflash_promote:
"""

RETURN = r"""
entry:
  description: The recorded entry.
  returned: success
  type: dict
  sample: {run_id: 20260131T120000Z-demo, env_id: cpu-py311-3f2a91c04b7d, release_id: 5d646f9}
message:
  description: Result in one sentence.
  returned: success
  type: str
  sample: run 20260131T120000Z-demo is known-good now
"""

from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.dflash_module import RUN, run_module
from ansible.module_utils.dflash_ops.core.paths import Layout
from ansible.module_utils.dflash_ops.operations import promote

ARGUMENTS: dict[str, dict[str, Any]] = {
    **RUN,
    "operator": {"type": "str", "default": ""},
    "allow_dirty": {"type": "bool", "default": False},
}


def act(module: AnsibleModule, layout: Layout) -> dict[str, Any]:
    """Promote a run."""
    params = module.params
    return promote.promote(
        layout,
        params["run"],
        operator=params["operator"],
        allow_dirty=params["allow_dirty"],
        check_mode=module.check_mode,
    )


if __name__ == "__main__":
    run_module(ARGUMENTS, act)
