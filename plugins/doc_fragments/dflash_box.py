"""Options that modules share."""

from __future__ import annotations


class ModuleDocFragment:
    """The box, the run that is meant, what a trainer process is made of, and what modules that only read have."""

    DOCUMENTATION = r"""
options:
  root:
    description: Folder of everything on the box (C(dflash_root)).
    type: str
    required: true
  workspace:
    description: Mount that holds the runs (C(dflash_workspace)).
    type: str
    default: ""
  lock_token:
    description: The operator lock to renew with this call.
    type: str
    default: ""
author: DFlash operations
"""

    SELECTION = r"""
options:
  env_id:
    description: Environment whose Python runs the trainer.
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
