#!/usr/bin/python
"""See DOCUMENTATION."""

from __future__ import annotations

DOCUMENTATION = r"""
module: dflash_run
short_description: A training run lives, started from a recorded and checked state
description:
  - Looks at everything a launch depends on (environment, release, inputs, GPUs, space, secrets, compile cache, living
    runs) and refuses with every reason at once; else starts the run in its own tmux session.
  - A run that lives is never touched. With O(if_running=keep) that is a success which says what differs from what was
    asked; with O(if_running=refuse) it is a refusal.
extends_documentation_fragment: [dflash_box, dflash_box.selection]
options:
  label:
    description: Word behind the time in the run's id; empty for the configuration's name.
    type: str
    default: ""
  session:
    description: Name of the tmux session.
    type: str
    default: dflash
  operator:
    description: Who launches, for the record.
    type: str
    default: ""
  resume:
    description: V(auto) for the newest run of the same configuration, V(never), or the id of a run.
    type: str
    default: auto
  secrets:
    description: Secrets of the trainer; kept in a 0600 file only.
    type: dict
    default: {}
  expected_tok_s:
    description: Speed that the run should reach; 0 when it is not known.
    type: float
    default: 0
  tolerance:
    description: Part of that speed that is enough.
    type: float
    default: 0.8
  speed_steps:
    description: Steps over which a speed counts.
    type: int
    default: 10
  script_link:
    description: Where a link to start_training.sh is kept; empty for none.
    type: str
    default: ""
  notify:
    description: Hook for events of the run.
    type: dict
    default: {}
  if_running:
    description: What a living run means.
    type: str
    choices: [keep, refuse]
    default: refuse
  repeat_finished:
    description: Start also when the same state came to its end already.
    type: bool
    default: true
  preflight_only:
    description: Start nothing; only tell the reasons not to, as if the run that lives were stopped already.
    type: bool
    default: false
  wipe:
    description: The compile cache will be made anew between the stop and the launch. Only O(preflight_only) reads this.
    type: bool
    default: false
  after_stop:
    description: In check mode, a stop came before this, so the run that lives now would be gone.
    type: bool
    default: false
  allow_cold:
    description: Start also when the compile cache is not warm.
    type: bool
    default: false
  origin:
    description: Why it is launched, for the record.
    type: dict
    default: {}
  mark_bad:
    description: Runs to mark bad once this one is launched; a run named in O(origin) loses its mark.
    type: list
    elements: str
    default: []
attributes:
  check_mode:
    description: Every look is taken, nothing is started.
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
  description: The run that lives now.
  returned: success
  type: str
  sample: 20260131T120000Z-demo
launched:
  description: Whether this call started it.
  returned: success
  type: bool
  sample: true
said:
  description: One sentence for the operator.
  returned: success
  type: str
  sample: launched 20260131T120000Z-demo (pid 4711)
differs:
  description: What of the living run is not what was asked.
  returned: success
  type: list
  sample: ["release 5d646f9, asked for 9883645"]
problems:
  description: Reasons not to launch.
  returned: failure
  type: list
  sample: [{name: run-lives, message: run 20260131T120000Z-demo lives (pid 4711)., remedy: playbooks/stop.yml ends it}]
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
    """Launch, or say why nothing is to be launched."""
    do = ensure_run.before_stop if module.params["preflight_only"] else ensure_run.ensure
    return do(layout, module.params, check_mode=module.check_mode)


if __name__ == "__main__":
    run_module(ARGUMENTS, act)
