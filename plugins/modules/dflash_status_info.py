#!/usr/bin/python
"""See DOCUMENTATION."""

from __future__ import annotations

DOCUMENTATION = r"""
module: dflash_status_info
short_description: Show the state of the training run
description:
  - Returns the state (running, stalled, finished, stopped, failed, killed or lost) from the run's record and /proc,
    with step, loss, speed, GPUs, checkpoints, and every problem with its remedy. Also returns the jobs that are running
    on the box, the holder of the operator lock, and the best known speed of this configuration.
  - With O(watch=true) the action plugin polls, prints each phase and step as it comes, and ends when the health check
    has passed or failed.
  - A box that cannot be reached gives the state C(unknown), and the host counts as unreachable.
extends_documentation_fragment: [dflash_box, dflash_box.run, dflash_box.answer]
options:
  stall_seconds:
    description: Seconds without a step, phase or log line after which a running process counts as stalled.
    type: float
    default: 300
  wait:
    description: Seconds to wait on the box for a new phase, a new step or the end.
    type: float
    default: 0
  news_key:
    description: RV(news_key) of the previous call; O(wait) ends as soon as it changes.
    type: str
    default: ""
  strict:
    description: >-
      Fail when the run is failed, killed, lost or stalled, and report the host as unreachable when the state could not
      be read. Only the action plugin reads this.
    type: bool
    default: false
  watch:
    description: Follow the run until its health check has passed or failed.
    type: bool
    default: false
  expected_tok_s:
    description: Expected speed for O(watch), in tokens per second; 0 takes the speed in the run's record.
    type: float
    default: 0
  tolerance:
    description: Fraction of that speed that is enough.
    type: float
    default: 0.8
  speed_steps:
    description: Window of steps over which the speed counts; O(watch) also waits for that many steps.
    type: int
    default: 10
  timeout:
    description: Seconds after which O(watch) fails. Only the action plugin reads this.
    type: float
    default: 7200
"""

EXAMPLES = r"""
- name: Show the state of the run
  dflash_status_info:
    json_out: status.json
"""

RETURN = r"""
answer:
  description: The same data as the screen, for other programs; also written to O(json_out).
  returned: success
  type: dict
  sample: {ok: true, state: running, run_id: 20260131T120000Z-demo, pid: 4711, step: 128, tok_s: 812.0, problems: []}
"""

from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.dflash_module import ANSWER, RUN, run_module
from ansible.module_utils.dflash_ops.core.paths import Layout
from ansible.module_utils.dflash_ops.monitor import rules
from ansible.module_utils.dflash_ops.operations import box_activity, health_check

ARGUMENTS: dict[str, dict[str, Any]] = {
    **ANSWER,
    **RUN,
    "stall_seconds": {"type": "float", "default": rules.STALL_SECONDS},
    "wait": {"type": "float", "default": 0.0},
    "news_key": {"type": "str", "default": ""},
    "strict": {"type": "bool", "default": False},
    "watch": {"type": "bool", "default": False},
    "expected_tok_s": {"type": "float", "default": 0.0},
    "tolerance": {"type": "float", "default": rules.TOLERANCE},
    "speed_steps": {"type": "int", "default": 10},
    "timeout": {"type": "float", "default": 7200.0},
}


def act(module: AnsibleModule, layout: Layout) -> dict[str, Any]:
    """Return the status, after waiting for news when `wait` is set."""
    params = module.params
    if params["wait"]:
        health_check.wait_for_news(layout, params["run"], last_key=params["news_key"], seconds=params["wait"])
    answer = box_activity.snapshot(layout, run_id=params["run"], stall_seconds=params["stall_seconds"])
    if not params["watch"]:
        return {"answer": answer}
    return {"answer": answer, **health_check.judge(layout, answer, params)}


if __name__ == "__main__":
    run_module(ARGUMENTS, act)
