"""Options of the builtin ssh connection, with the defaults that a connection through `pct exec` needs."""
from __future__ import annotations

from typing import Any

import yaml
from ansible.plugins.connection import ssh

# Option -> default that differs from the builtin plugin's
DEFAULTS: dict[str, Any] = {
    "pipelining": True,
    "use_tty": False,
    "ssh_transfer_method": "piped",
    "ssh_args": "-o ControlMaster=auto -o ControlPersist=300s -o ServerAliveInterval=15 -o ServerAliveCountMax=8",
}
# ansible-doc requires a description of each option, and the builtin plugin describes these elsewhere
DESCRIPTIONS = {
    "pipelining": "Send modules through standard input instead of copying them first; on by default here.",
    "sftp_batch_mode": "Not used here, files are sent through the pipe of `pct exec`.",
}


def inherited_options() -> dict[str, Any]:
    """Return the options that the builtin plugin documents, with the defaults of this connection."""
    options: dict[str, Any] = yaml.safe_load(ssh.DOCUMENTATION)["options"]
    for name, default in DEFAULTS.items():
        options[name]["default"] = default
        # Settings in ansible.cfg for plain ssh must not override what pct needs
        if name in ("use_tty", "ssh_transfer_method"):
            for source in ("env", "ini", "vars"):
                options[name].pop(source, None)
    for name, option in options.items():
        option.setdefault("description", DESCRIPTIONS.get(name, f"As in the builtin ssh connection, option {name}."))
    options["pipelining"].setdefault("type", "boolean")
    return options


class ModuleDocFragment:
    """Options for `extends_documentation_fragment: pct_ssh`."""

    DOCUMENTATION = yaml.safe_dump({"options": inherited_options()}, sort_keys=False)
