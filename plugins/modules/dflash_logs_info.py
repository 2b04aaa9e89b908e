#!/usr/bin/python
"""See DOCUMENTATION."""

from __future__ import annotations

DOCUMENTATION = r"""
module: dflash_logs_info
short_description: Lines of a run's log
description:
  - The last lines of the log of any run, or those since a time ago; each begins with the UTC time it was written at.
    With O(follow) the action plugin prints new lines as they come, for that long. Never more than 1 MiB at once.
extends_documentation_fragment: [dflash_box, dflash_box.run, dflash_box.answer]
options:
  lines:
    description: How many lines; -1 for 50, or for all of the time that O(since) names.
    type: int
    default: -1
  since:
    description: Only what was written in this last length of time, such as V(10m) or V(600); 0 for any time.
    type: str
    default: "0"
  offset:
    description: Byte to go on from; negative for the last lines.
    type: int
    default: -1
  wait:
    description: Seconds to wait on the box for something new.
    type: float
    default: 0
  follow:
    description: How long to follow, such as V(2m) or V(120). Only the action plugin reads this.
    type: str
    default: "0"
"""

EXAMPLES = r"""
- name: Show the last lines
  dflash_logs_info:
    lines: 20
"""

RETURN = r"""
answer:
  description: What other programs read; O(json_out) gets the same.
  returned: success
  type: dict
  sample: {ok: true, run_id: 20260131T120000Z-demo, lines: ["2026-01-31T12:04:05Z step 128/400 loss 3.9"], problems: []}
"""

from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.dflash_module import ANSWER, RUN, run_module
from ansible.module_utils.dflash_ops.core import durations
from ansible.module_utils.dflash_ops.core.paths import Layout
from ansible.module_utils.dflash_ops.monitor import logs

ARGUMENTS: dict[str, dict[str, Any]] = {
    **ANSWER,
    **RUN,
    "lines": {"type": "int", "default": logs.ALL},
    "since": {"type": "str", "default": "0"},
    "offset": {"type": "int", "default": -1},
    "wait": {"type": "float", "default": 0.0},
    "follow": {"type": "str", "default": "0"},
}


def act(module: AnsibleModule, layout: Layout) -> dict[str, Any]:
    """Read the part of the log that was asked for."""
    want = module.params
    if want["offset"] >= 0:
        part = logs.after(layout, want["run"], offset=want["offset"], wait=want["wait"])
    else:
        part = logs.last(layout, want["run"], lines=want["lines"], since=durations.parse(want["since"]))
    return {"answer": {"ok": True, "problems": [], **part}}


if __name__ == "__main__":
    run_module(ARGUMENTS, act)
