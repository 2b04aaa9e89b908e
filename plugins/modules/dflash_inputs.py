#!/usr/bin/python
"""See DOCUMENTATION."""

from __future__ import annotations

DOCUMENTATION = r"""
module: dflash_inputs
short_description: Check that dataset and target weights are present, intact and unchanged
description:
  - Resolves the files that the configuration reads, checks that they exist and are intact, and compares them with their
    recorded fingerprints. New inputs are fingerprinted.
  - A job on the box hashes inputs of more than a few gigabytes. The action plugin of the same name prints its progress.
extends_documentation_fragment: [dflash_box, dflash_box.selection]
options:
  accept:
    description: Record changed files instead of failing.
    type: bool
    default: false
  full:
    description: Hash every file, not only those with a different size or time.
    type: bool
    default: false
attributes:
  check_mode:
    description: Reports the inputs without recording them.
    support: full
  diff_mode:
    description: Shows the inputs to fingerprint.
    support: full
"""

EXAMPLES = r"""
- name: Check the run's inputs against their record
  dflash_inputs:
    env_id: "{{ ansible_facts['dflash_env']['env_id'] }}"
    release_id: "{{ ansible_facts['dflash_release']['release_id'] }}"
    config: demo.toml
"""

RETURN = r"""
inputs:
  description: Path, state, problems, fingerprint and bytes of each input.
  returned: success
  type: dict
  sample: {dataset: {path: /workspace/data/train, state: recorded, fingerprint: 9f2c, bytes: 214893, problems: []}}
"""

from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.dflash_module import SELECTION, run_module
from ansible.module_utils.dflash_ops import inputs, resolved_config
from ansible.module_utils.dflash_ops.core import jobs
from ansible.module_utils.dflash_ops.core.paths import Layout
from ansible.module_utils.dflash_ops.operations.ensure_run import selection_from

ARGUMENTS: dict[str, dict[str, Any]] = {
    **SELECTION,
    "accept": {"type": "bool", "default": False},
    "full": {"type": "bool", "default": False},
}
# Inputs up to this size are hashed in the module call, which takes a few seconds.
INLINE_BYTES = 4 << 30


def act(module: AnsibleModule, layout: Layout) -> dict[str, Any]:
    """Check the inputs and record the new ones.

    Raises:
        OpsError: an input is missing, damaged, or changed and not accepted.
    """
    params = module.params
    selection = selection_from(params)
    if module.check_mode and not layout.is_built(selection.env_id, selection.release_id):
        return {
            "changed": True,
            "inputs": {},
            "msg": "The inputs will be fingerprinted once environment and release are installed.",
        }
    resolved = resolved_config.resolve(layout, selection, store=not module.check_mode)
    statuses = [inputs.inspect(layout, item, full=params["full"]) for item in inputs.required_inputs(resolved)]
    refused = ("absent", "damaged") if params["accept"] else ("absent", "damaged", "changed")
    rejected = [status for status in statuses if status.state in refused]
    if rejected:
        raise inputs.problems_error(rejected)
    to_record = [status for status in statuses if status.state in ("new", "changed")]
    result: dict[str, Any] = {
        "changed": bool(to_record),
        "inputs": {status.item.name: status.as_dict() for status in statuses},
        "diff": {
            "before": "",
            "after": "".join(f"{status.item.name} {status.item.path} fingerprinted\n" for status in to_record),
        },
    }
    if module.check_mode or not to_record:
        return result
    if sum(status.size for status in to_record) > INLINE_BYTES:
        arguments = {
            "root": params["root"],
            "workspace": params["workspace"],
            "inputs": [[status.item.name, str(status.item.path)] for status in to_record],
        }
        job = jobs.start_or_attach(layout, "inputs", inputs.ENTRY, arguments, title="fingerprint the inputs")
        result["job"] = job.as_dict()
        return result
    for status in to_record:
        result["inputs"][status.item.name].update(fingerprint=inputs.record(layout, status.item), state="recorded")
    return result


if __name__ == "__main__":
    run_module(ARGUMENTS, act)
