#!/usr/bin/python
"""See DOCUMENTATION."""

from __future__ import annotations

DOCUMENTATION = r"""
module: dflash_run
short_description: Launch a training run from a recorded and checked state
description:
  - Checks everything that a launch depends on (environment, release, inputs, GPUs, disk space, secrets, compile cache,
    running runs) and fails with all problems at once; otherwise starts the run in its own tmux session.
  - A running run is never changed. With O(if_running=keep) the module succeeds and reports how the run differs from the
    requested one; with O(if_running=refuse) it fails.
extends_documentation_fragment: [dflash_box, dflash_box.selection]
options:
  label:
    description: Second part of the run's id, after the time; empty for the configuration's name.
    type: str
    default: ""
  session:
    description: Name of the tmux session.
    type: str
    default: dflash
  operator:
    description: Person who launches, for the record.
    type: str
    default: ""
  resume:
    description: Resume from V(auto) (the newest run of the same configuration), V(never), or the run with this id.
    type: str
    default: auto
  secrets:
    description: Secrets of the trainer; kept only in a file with mode 0600.
    type: dict
    default: {}
  expected_tok_s:
    description: Expected speed in tokens a second; 0 when unknown.
    type: float
    default: 0
  tolerance:
    description: Fraction of the expected speed that is accepted.
    type: float
    default: 0.8
  speed_steps:
    description: Number of steps over which the speed is measured.
    type: int
    default: 10
  script_link:
    description: Path of a symlink to start_training.sh; empty for none.
    type: str
    default: ""
  notify:
    description: Notification hook for events of the run.
    type: dict
    default: {}
  if_running:
    description: Keep a running run and succeed, or fail.
    type: str
    choices: [keep, refuse]
    default: refuse
  repeat_finished:
    description: Launch also when the current run already finished with the same configuration.
    type: bool
    default: true
  preflight_only:
    description: Only run the preflight checks, as if the running run were stopped already.
    type: bool
    default: false
  wipe:
    description: The compile cache will be rebuilt between stop and launch. Only O(preflight_only) reads this.
    type: bool
    default: false
  after_stop:
    description: In check mode, a stop precedes this task, so that the running run would be stopped.
    type: bool
    default: false
  allow_cold:
    description: Launch also with a cold compile cache.
    type: bool
    default: false
  origin:
    description: Reason for the launch, for the record.
    type: dict
    default: {}
  mark_bad:
    description: Runs to mark bad after the launch; the run named in O(origin) is no longer marked bad.
    type: list
    elements: str
    default: []
attributes:
  check_mode:
    description: All preflight checks run, nothing is started.
    support: full
  diff_mode:
    description: The state of the run before and after.
    support: full
"""

EXAMPLES = r"""
- name: Start training
  dflash_run:
    env_id: cpu-py311-3f2a91c04b7d
    release_id: 5d646f9
    config: demo.toml
"""

RETURN = r"""
run_id:
  description: Id of the running run; empty when none was launched.
  returned: success
  type: str
  sample: 20260131T120000Z-demo
launched:
  description: True when this call launched the run.
  returned: success
  type: bool
  sample: true
message:
  description: Result in one sentence.
  returned: success
  type: str
  sample: launched 20260131T120000Z-demo (pid 4711)
differs:
  description: Differences between the running run and the requested run.
  returned: success
  type: list
  sample: ["release is 5d646f9, requested 9883645"]
problems:
  description: Reasons against the launch.
  returned: failure
  type: list
  sample: [{name: disk-short, message: 3 GB free on /workspace., remedy: playbooks/prune.yml}]
"""

from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.dflash_module import SELECTION, run_module
from ansible.module_utils.dflash_ops.core.paths import Layout
from ansible.module_utils.dflash_ops.operations import ensure_run

ARGUMENTS: dict[str, dict[str, Any]] = {
    **SELECTION,
    "label": {"type": "str", "default": ""},
    "session": {"type": "str", "default": "dflash"},
    "operator": {"type": "str", "default": ""},
    "resume": {"type": "str", "default": "auto"},
    "secrets": {"type": "dict", "default": {}, "no_log": True},
    "expected_tok_s": {"type": "float", "default": 0.0},
    "tolerance": {"type": "float", "default": 0.8},
    "speed_steps": {"type": "int", "default": 10},
    "script_link": {"type": "str", "default": ""},
    "notify": {"type": "dict", "default": {}},
    "if_running": {"type": "str", "choices": ["keep", "refuse"], "default": "refuse"},
    "repeat_finished": {"type": "bool", "default": True},
    "preflight_only": {"type": "bool", "default": False},
    "wipe": {"type": "bool", "default": False},
    "after_stop": {"type": "bool", "default": False},
    "allow_cold": {"type": "bool", "default": False},
    "origin": {"type": "dict", "default": {}},
    "mark_bad": {"type": "list", "elements": "str", "default": []},
}


def act(module: AnsibleModule, layout: Layout) -> dict[str, Any]:
    """Launch a run, or only run the preflight checks."""
    operation = ensure_run.check_before_stop if module.params["preflight_only"] else ensure_run.ensure
    return operation(layout, module.params, check_mode=module.check_mode)


if __name__ == "__main__":
    run_module(ARGUMENTS, act)
