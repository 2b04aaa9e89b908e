"""Options that modules share."""

from __future__ import annotations


class ModuleDocFragment:
    """The box, a run, the lock of an environment, what a trainer is made of, and what modules that only read have."""

    DOCUMENTATION = r"""
options:
  root:
    description: Folder of everything on the box. The action plugin takes C(dflash_root) unless the task sets it.
    type: str
    required: true
  workspace:
    description: Mount that holds the runs. The action plugin takes C(dflash_workspace) unless the task sets it.
    type: str
    default: ""
  lock_token:
    description: Operator lock to renew with this call. The action plugin takes C(dflash_lock_token) if set.
    type: str
    default: ""
author: DFlash operations
"""

    LOCK = r"""
options:
  profile:
    description: V(cpu), V(cu128), or V(preinstalled) for an image that brings the pinned torch.
    type: str
    choices: [cpu, cu128, preinstalled]
    required: true
  lock:
    description: Text of the lockfile. The action plugin reads it from O(lock_file).
    type: str
    default: ""
  lock_name:
    description: Name of the lockfile in messages.
    type: str
    default: lock
  lock_file:
    description: Lockfile on the controller. Only the action plugin reads this.
    type: str
    default: ""
  python:
    description: Path or version of the base interpreter; empty for the first one that the lockfile supports.
    type: str
    default: ""
"""

    SELECTION = r"""
options:
  env_id:
    description: Environment whose Python runs the trainer; empty where it is still to be named.
    type: str
    default: ""
  release_id:
    description: Release whose code runs.
    type: str
    default: ""
  config:
    description: Configuration file below C(trainer/configs) of the release.
    type: str
    default: ""
  overrides:
    description: Changes to it, each C(section.key=value).
    type: list
    elements: str
    default: []
  environment:
    description: Further environment variables, none of them secret.
    type: dict
    default: {}
"""

    RUN = r"""
options:
  run:
    description: Id of the run; empty for the current one.
    type: str
    default: ""
"""

    ANSWER = r"""
attributes:
  check_mode:
    description: Nothing is changed at any time.
    support: full
  diff_mode:
    description: There is nothing to compare.
    support: none
options:
  json_out:
    description: File on the controller that gets one JSON object per box. Only the action plugin reads this.
    type: str
    default: ""
"""
