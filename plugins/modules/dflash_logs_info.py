#!/usr/bin/python
"""See DOCUMENTATION."""

from __future__ import annotations

DOCUMENTATION = r"""
module: dflash_logs_info
short_description: Show lines of a run's log
description:
  - Returns the last lines of the log of a run, or the lines of the last minutes; each line begins with its UTC time.
    With O(follow) the action plugin also prints the lines written during that time. Reads at most 1 MiB per call.
extends_documentation_fragment: [dflash_box, dflash_box.run, dflash_box.answer]
options:
  lines:
    description: Number of lines; -1 for 50, or with O(since) for all lines of that time.
    type: int
    default: -1
  since:
    description: Only lines of this last duration, such as V(10m) or V(600); 0 for no limit.
    type: str
    default: "0"
  offset:
    description: Byte offset to read from; negative for the last lines.
    type: int
    default: -1
  wait:
    description: Seconds to wait on the box for a new line.
    type: float
    default: 0
  follow:
    description: Duration for which to follow the log, such as V(2m) or V(120). Only the action plugin reads this.
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
  description: The same data as the screen, for other programs; also written to O(json_out).
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
    """Read the requested part of the log."""
    params = module.params
    if params["offset"] >= 0:
        part = logs.after(layout, params["run"], offset=params["offset"], wait=params["wait"])
    else:
        part = logs.last(layout, params["run"], lines=params["lines"], since=durations.parse(params["since"]))
    return {"answer": {"ok": True, "problems": [], **part}}


if __name__ == "__main__":
    run_module(ARGUMENTS, act)
