#!/usr/bin/python
"""See DOCUMENTATION."""

from __future__ import annotations

DOCUMENTATION = r"""
module: dflash_status_info
short_description: How the training run stands
description:
  - Tells running, stalled, finished, stopped, failed, killed and lost apart from the run's record and /proc, with step,
    loss, speed, GPUs, checkpoints and every problem named with its remedy; also the jobs that are at work on the box,
    who holds it, and the best speed that is known of this configuration.
  - With O(watch=true) the action plugin looks again and again, prints each phase and step as it comes, and ends when
    the run has proved its speed, or with the name of what went wrong.
  - A box that cannot be reached gives the state C(unknown); nothing is said about its run then, and the playbook ends
    as Ansible ends where a host is unreachable.
extends_documentation_fragment: [dflash_box, dflash_box.run, dflash_box.answer]
options:
  stall_seconds:
    description: Silence after which a live run is stalled.
    type: float
    default: 300
  wait:
    description: Seconds to wait on the box for a new phase, a new step or the end.
    type: float
    default: 0
  news_key:
    description: The phase and step that the caller has seen.
    type: str
    default: ""
  strict:
    description: >-
      Fail where the run is failed, killed, lost or stalled, and end as unreachable where the box could not be asked.
      Only the action plugin reads this.
    type: bool
    default: false
  watch:
    description: Follow until the run is proved alive. Only the action plugin reads this.
    type: bool
    default: false
  expected_tok_s:
    description: Speed to reach while O(watch); 0 takes what the run's record says.
    type: float
    default: 0
  tolerance:
    description: Part of that speed that is enough.
    type: float
    default: 0.8
  speed_steps:
    description: Steps over which a speed counts, and the least that must be trained while O(watch).
    type: int
    default: 10
  timeout:
    description: Seconds after which O(watch) gives up.
    type: float
    default: 7200
"""

EXAMPLES = r"""
- name: Look at the run
  dflash_status_info:
    json_out: status.json
"""

RETURN = r"""
answer:
  description: What other programs read; O(json_out) gets the same.
  returned: success
  type: dict
  sample: {ok: true, state: running, run_id: 20260131T120000Z-demo, pid: 4711, step: 128, tok_s: 812.0, problems: []}
"""

from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.dflash_module import ANSWER, RUN, run_module
from ansible.module_utils.dflash_ops.core.paths import Layout
from ansible.module_utils.dflash_ops.monitor import status
from ansible.module_utils.dflash_ops.operations import box_activity, health_check

ARGUMENTS: dict[str, dict[str, Any]] = {
    **ANSWER,
    **RUN,
    "stall_seconds": {"type": "float", "default": status.STALL_SECONDS},
    "wait": {"type": "float", "default": 0.0},
    "news_key": {"type": "str", "default": ""},
    "strict": {"type": "bool", "default": False},
    "watch": {"type": "bool", "default": False},
    "expected_tok_s": {"type": "float", "default": 0.0},
    "tolerance": {"type": "float", "default": 0.8},
    "speed_steps": {"type": "int", "default": 10},
    "timeout": {"type": "float", "default": 7200.0},
}


def act(module: AnsibleModule, layout: Layout) -> dict[str, Any]:
    """Look once, after waiting for something new when asked to."""
    want = module.params
    if want["wait"]:
        health_check.wait_for_news(layout, want["run"], last_key=want["news_key"], seconds=want["wait"])
    answer = box_activity.look(layout, run_id=want["run"], stall_seconds=want["stall_seconds"])
    if not want["watch"]:
        return {"answer": answer}
    judged = health_check.judge(layout, answer, want)
    return {"answer": answer, **judged}


if __name__ == "__main__":
    run_module(ARGUMENTS, act)
