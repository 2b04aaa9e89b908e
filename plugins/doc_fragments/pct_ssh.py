"""Documentation fragment: all options of the builtin ssh connection, with different defaults where pct needs them."""
from __future__ import annotations

from typing import Any

import yaml
from ansible.plugins.connection import ssh

# option -> default that differs from that of the builtin plugin
DEFAULTS: dict[str, Any] = {
    "pipelining": True,
    "use_tty": False,
    "ssh_transfer_method": "piped",
    "ssh_args": "-o ControlMaster=auto -o ControlPersist=300s -o ServerAliveInterval=15 -o ServerAliveCountMax=8",
}
# descriptions that ansible-doc requires and the builtin plugin lacks
DESCRIPTIONS = {
    "pipelining": "Send modules through standard input instead of copying them first; on by default here.",
    "sftp_batch_mode": "Not used here, files are copied through the agent.",
}


def inherited_options() -> dict[str, Any]:
    """Return the options of the builtin ssh plugin with our defaults."""
    options: dict[str, Any] = yaml.safe_load(ssh.DOCUMENTATION)["options"]
    for name, default in DEFAULTS.items():
        options[name]["default"] = default
        # settings of ansible.cfg for plain ssh must not override these
        if name in ("use_tty", "ssh_transfer_method"):
            for source in ("env", "ini", "vars"):
                options[name].pop(source, None)
    for name, option in options.items():
        option.setdefault("description", DESCRIPTIONS.get(name, f"As in the builtin ssh connection, option {name}."))
    options["pipelining"].setdefault("type", "boolean")
    return options


class ModuleDocFragment:
    """Fragment for `extends_documentation_fragment: pct_ssh`."""

    DOCUMENTATION = yaml.safe_dump({"options": inherited_options()}, sort_keys=False)
