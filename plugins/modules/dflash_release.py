#!/usr/bin/python
"""See DOCUMENTATION."""

from __future__ import annotations

DOCUMENTATION = r"""
module: dflash_release
short_description: The code of the trainer is on the box at a commit, and as it was pushed
description:
  - Looks whether a release is complete and compares its files with its record, in one call.
  - The action plugin of the same name makes the archive from the checkout and pushes it when it is missing.
extends_documentation_fragment: [dflash_box]
options:
  version:
    description: Commit, branch or tag of the controller's checkout. Only the action plugin reads this.
    type: str
    default: HEAD
  allow_dirty:
    description: Take files that are not committed; the name then says so. Only the action plugin reads this.
    type: bool
    default: false
  heal:
    description: Place the files again when someone changed them on the box.
    type: bool
    default: false
  release_id:
    description: Name of the release; the action plugin gives it.
    type: str
    default: ""
  commit:
    description: The whole commit id; the action plugin gives it.
    type: str
    default: ""
  tree_hash:
    description: Hash over the files; the action plugin gives it.
    type: str
    default: ""
  subject:
    description: First line of the commit's message; the action plugin gives it.
    type: str
    default: ""
  archive:
    description: Where the action plugin put the archive on the box; empty to only look.
    type: str
    default: ""
attributes:
  check_mode:
    description: Nothing is placed in check mode; what would be is reported.
    support: full
  diff_mode:
    description: The release before and after.
    support: full
"""

EXAMPLES = r"""
- name: Place the trainer of the checked-out commit
  dflash_release:
"""

RETURN = r"""
release_id:
  description: Name of the release.
  returned: always
  type: str
  sample: 551e956a1b2c
folder:
  description: Where it is.
  returned: always
  type: str
  sample: /opt/dflash/releases/551e956a1b2c
state:
  description: How it stands; V(complete), V(missing) or V(drifted).
  returned: always
  type: str
  sample: complete
ansible_facts:
  description: C(dflash_release) with release_id, folder and tree_hash, for the roles that follow.
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
    """Return the module's result; place the release when its archive is there.

    Raises:
        OpsError: it was changed on the box and is not to be healed, or the archive is not what was named.
    """
    want = module.params
    wanted = release.Wanted.of(want)
    state, drift = release.inspect(layout, wanted)
    if state == "drifted" and not want["heal"]:
        raise release.refusal(wanted, drift)
    needs = state != "complete"
    if needs and want["archive"] and not module.check_mode:
        release.place(layout, wanted, Path(want["archive"]))
        state = "complete"
    folder = str(layout.release(wanted.release_id))
    after = f"{wanted.release_id} {wanted.subject}\n"
    before = after if not needs else "".join(f"{one}\n" for one in drift)
    return {
        "changed": needs and (module.check_mode or bool(want["archive"])),
        "release_id": wanted.release_id,
        "folder": folder,
        "state": state,
        "needs_archive": needs,
        "diff": {"before": before, "after": after},
        "ansible_facts": {
            "dflash_release": {"release_id": wanted.release_id, "folder": folder, "tree_hash": wanted.tree_hash}
        },
    }


if __name__ == "__main__":
    run_module(ARGUMENTS, act)
