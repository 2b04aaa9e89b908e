"""Options shared by several modules."""

from __future__ import annotations


class ModuleDocFragment:
    """Options of the box, a run, a lockfile, a trainer selection, and of modules that only read."""

    DOCUMENTATION = r"""
options:
  root:
    description: Base folder on the box. The action plugin uses C(dflash_root) unless the task sets it.
    type: str
    required: true
  workspace:
    description: Folder of the runs. The action plugin uses C(dflash_workspace) unless the task sets it.
    type: str
    default: ""
  lock_token:
    description: Token of the operator lock to renew with this call. The action plugin uses C(dflash_lock_token) if set.
    type: str
    default: ""
author: DFlash operations
"""

    LOCK = r"""
options:
  profile:
    description: V(cpu), V(cu128), or V(preinstalled) for an image that contains the pinned torch.
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
    description: Environment whose Python runs the trainer; empty when it is not known yet.
    type: str
    default: ""
  release_id:
    description: Release of the trainer.
    type: str
    default: ""
  config:
    description: Configuration file below C(trainer/configs) of the release.
    type: str
    default: ""
  overrides:
    description: Overrides of the configuration, each C(section.key=value).
    type: list
    elements: str
    default: []
  environment:
    description: Additional environment variables of the trainer, without secrets.
    type: dict
    default: {}
"""

    RUN = r"""
options:
  run:
    description: Id of the run; empty for the current run.
    type: str
    default: ""
"""

    ANSWER = r"""
attributes:
  check_mode:
    description: The module changes nothing.
    support: full
  diff_mode:
    description: The module does not report a diff.
    support: none
options:
  json_out:
    description: File on the controller for one JSON object per box. Only the action plugin uses this option.
    type: str
    default: ""
"""
