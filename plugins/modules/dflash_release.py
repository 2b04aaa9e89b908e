#!/usr/bin/python
"""See DOCUMENTATION."""

from __future__ import annotations

DOCUMENTATION = r"""
module: dflash_release
short_description: Install the trainer's code of one commit and verify that it is unchanged
description:
  - Checks in one call whether a release is complete and compares its files with its record.
  - The action plugin of the same name creates the archive from the checkout and copies it to the box if needed.
extends_documentation_fragment: [dflash_box]
options:
  version:
    description: Commit, branch or tag of the controller's checkout. Only the action plugin reads this.
    type: str
    default: HEAD
  allow_dirty:
    description: Include uncommitted files; the release is then named C(+dirty). Only the action plugin reads this.
    type: bool
    default: false
  heal:
    description: Restore the files if they were changed on the box.
    type: bool
    default: false
  release_id:
    description: Name of the release, set by the action plugin.
    type: str
    default: ""
  commit:
    description: Full commit id, set by the action plugin.
    type: str
    default: ""
  tree_hash:
    description: Hash over the files, set by the action plugin.
    type: str
    default: ""
  subject:
    description: First line of the commit message, set by the action plugin.
    type: str
    default: ""
  archive:
    description: Path of the archive on the box, set by the action plugin; empty to check only.
    type: str
    default: ""
attributes:
  check_mode:
    description: Reports the planned change without installing.
    support: full
  diff_mode:
    description: Shows the release before and after.
    support: full
"""

EXAMPLES = r"""
- name: Install the trainer of the checked-out commit
  dflash_release:
"""

RETURN = r"""
release_id:
  description: Name of the release.
  returned: always
  type: str
  sample: 551e956a1b2c
folder:
  description: Folder of the release.
  returned: always
  type: str
  sample: /opt/dflash/releases/551e956a1b2c
state:
  description: State of the release; V(complete), V(missing) or V(drifted).
  returned: always
  type: str
  sample: complete
ansible_facts:
  description: C(dflash_release) with release_id, folder and tree_hash, for later roles.
  returned: always
  type: dict
  sample: {dflash_release: {release_id: 551e956a1b2c}}
"""

from pathlib import Path
from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.dflash_module import run_module
from ansible.module_utils.dflash_ops import release
from ansible.module_utils.dflash_ops.core.paths import Layout

ARGUMENTS: dict[str, dict[str, Any]] = {
    "version": {"type": "str", "default": "HEAD"},
    "allow_dirty": {"type": "bool", "default": False},
    "heal": {"type": "bool", "default": False},
    "release_id": {"type": "str", "default": ""},
    "commit": {"type": "str", "default": ""},
    "tree_hash": {"type": "str", "default": ""},
    "subject": {"type": "str", "default": ""},
    "archive": {"type": "str", "default": ""},
}


def act(module: AnsibleModule, layout: Layout) -> dict[str, Any]:
    """Return the module's result; install the release if its archive was copied.

    Raises:
        OpsError: the release was changed on the box and `heal` is off, or the archive has a different tree hash.
    """
    params = module.params
    spec = release.Spec.from_params(params)
    state, drift = release.inspect(layout, spec)
    if state == "drifted" and not params["heal"]:
        raise release.drift_error(spec, drift)
    needs_archive = state != "complete"
    if needs_archive and params["archive"] and not module.check_mode:
        release.install(layout, spec, Path(params["archive"]))
        state = "complete"
    folder = str(layout.release(spec.release_id))
    after = f"{spec.release_id} {spec.subject}\n"
    before = "".join(f"{difference}\n" for difference in drift) if needs_archive else after
    return {
        "changed": needs_archive and (module.check_mode or bool(params["archive"])),
        "release_id": spec.release_id,
        "folder": folder,
        "state": state,
        "needs_archive": needs_archive,
        "diff": {"before": before, "after": after},
        "ansible_facts": {
            "dflash_release": {"release_id": spec.release_id, "folder": folder, "tree_hash": spec.tree_hash}
        },
    }


if __name__ == "__main__":
    run_module(ARGUMENTS, act)
