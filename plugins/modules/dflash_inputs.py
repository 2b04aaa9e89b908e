#!/usr/bin/python
"""See DOCUMENTATION."""

from __future__ import annotations

DOCUMENTATION = r"""
module: dflash_inputs
short_description: Dataset and target weights are present, whole, and the ones that were fingerprinted
description:
  - Asks the trainer which files the configuration reads, looks whether they are there and whole, and compares them with
    their record; what has none is fingerprinted.
  - Hashing of more than a few gigabytes is a job that outlives the call; the action plugin of the same name follows it.
extends_documentation_fragment: [dflash_box, dflash_box.selection]
options:
  accept:
    description: Take changed files as the right ones and record them.
    type: bool
    default: false
  full:
    description: Hash every file for the comparison, not only those whose size or time differs.
    type: bool
    default: false
attributes:
  check_mode:
    description: Nothing is recorded in check mode.
    support: full
  diff_mode:
    description: Fingerprints before and after.
    support: full
"""

EXAMPLES = r"""
- name: See that the run's inputs are the recorded ones
  dflash_inputs:
    env_id: "{{ ansible_facts['dflash_env']['env_id'] }}"
    release_id: "{{ ansible_facts['dflash_release']['release_id'] }}"
    config: demo.toml
"""

RETURN = r"""
inputs:
  description: Each input with path, state, fingerprint and bytes.
  returned: success
  type: dict
  sample: {dataset: {path: /workspace/data/train, state: recorded, fingerprint: 9f2c, bytes: 214893, problems: []}}
"""

from pathlib import Path
from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.dflash_module import SELECTION, run_module
from ansible.module_utils.dflash_ops import inputs, resolved_config
from ansible.module_utils.dflash_ops.core import jobs
from ansible.module_utils.dflash_ops.core.paths import Layout
from ansible.module_utils.dflash_ops.operations.ensure_run import selection_from
from ansible.module_utils.dflash_ops.run.trainer_command import Selection

ARGUMENTS: dict[str, dict[str, Any]] = {
    **SELECTION,
    "accept": {"type": "bool", "default": False},
    "full": {"type": "bool", "default": False},
}
# Hashing less than this is done in the call itself: a few seconds.
INLINE_BYTES = 4 << 30


def act(module: AnsibleModule, layout: Layout) -> dict[str, Any]:
    """Look at the inputs; record what is new.

    Raises:
        OpsError: something is missing, damaged, or changed and not accepted.
    """
    want = module.params
    selection = selection_from(want)
    if module.check_mode and not ready(layout, selection):
        return {"changed": True, "inputs": {}, "msg": "would be fingerprinted once environment and release are there"}
    resolved = resolved_config.resolve(layout, selection, store=not module.check_mode)
    looks = [inputs.look(layout, item, full=want["full"]) for item in inputs.wanted(resolved)]
    bad = [
        one for one in looks if one.state in ("absent", "damaged") or (one.state == "changed" and not want["accept"])
    ]
    if bad:
        raise inputs.refusal(bad)
    todo = [one for one in looks if one.state in ("new", "changed")]
    result: dict[str, Any] = {"changed": bool(todo), "inputs": {one.item.name: one.as_dict() for one in looks}}
    result["diff"] = {
        "before": "",
        "after": "".join(f"{one.item.name} {one.item.path} fingerprinted\n" for one in todo),
    }
    if module.check_mode or not todo:
        return result
    if sum(one.size for one in todo) > INLINE_BYTES:
        work = {
            "root": want["root"],
            "workspace": want["workspace"],
            "inputs": [[one.item.name, str(one.item.path)] for one in todo],
        }
        result["job"] = jobs.start_or_attach(
            layout, "inputs", inputs.ENTRY, work, title="fingerprint the inputs"
        ).as_dict()
        return result
    for one in todo:
        result["inputs"][one.item.name].update(fingerprint=inputs.record(layout, one.item), state="recorded")
    return result


def ready(layout: Layout, selection: Selection) -> bool:
    """Tell whether the trainer can be asked."""
    places: list[Path] = [
        layout.env(selection.env_id) / "env.json",
        layout.release(selection.release_id) / "release.json",
    ]
    return all(place.is_file() for place in places)


if __name__ == "__main__":
    run_module(ARGUMENTS, act)
