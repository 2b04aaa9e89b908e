"""Import paths of the checks: tools/, and the modules' packages as Ansible imports them."""

from __future__ import annotations

import sys
from pathlib import Path

import ansible.module_utils

REPO = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(REPO / "plugins/module_utils"), str(REPO / "plugins/plugin_utils")]
sys.path.insert(0, str(REPO / "tools"))
ansible.module_utils.__path__.append(str(REPO / "plugins/module_utils"))
