"""The command line that enters a container from a shell on its Proxmox host."""
from __future__ import annotations

import re
import shlex
from collections.abc import Sequence

from ..core.errors import OpsError

METHODS = ("pct", "lxc-attach")
LOWEST_VMID, HIGHEST_VMID = 100, 999_999_999
SEARCH_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
# Commands in the container see these variables and those of their task, none of the Proxmox host's.
ENVIRONMENT = (
    f"PATH={SEARCH_PATH}",
    "HOME=/root",
    "USER=root",
    "LOGNAME=root",
    "SHELL=/bin/sh",
    "LANG=C.UTF-8",
)


def check_vmid(value: object) -> int:
    """Return the container ID as an int.

    Raises:
        OpsError: the value is not a container ID.
    """
    text = str(value).strip() if isinstance(value, (int, str)) and not isinstance(value, bool) else ""
    if not re.fullmatch(r"[0-9]{1,9}", text) or not LOWEST_VMID <= int(text) <= HIGHEST_VMID:
        raise OpsError(
            f"pct_vmid = {value!r} is not a container ID.",
            remedy=f"Set pct_vmid to a whole number of at least {LOWEST_VMID}, as `pct list` on the host shows it.",
        )
    return int(text)


def check_method(value: object) -> str:
    """Return the method.

    Raises:
        OpsError: the method is unknown.
    """
    if value not in METHODS:
        raise OpsError(f"pct_method = {value!r} is unknown.", remedy=f"Use one of {', '.join(METHODS)}.")
    return str(value)


def pct_command(
    vmid: int | str,
    command: str | Sequence[str],
    *,
    executable: str = "/usr/sbin/pct",
    method: str = "pct",
    sudo: bool = False,
) -> str:
    """Return a shell command for the host that runs `command` as root in container `vmid`.

    Args:
        vmid: the container ID.
        command: a line for the container's /bin/sh, or the arguments of a command that needs no shell.
        executable: path of pct on the host; not used by lxc-attach.
        method: `pct`, or `lxc-attach` to avoid pct's start-up time.
        sudo: true when the login on the host needs sudo to become root.
    """
    number = str(check_vmid(vmid))
    if check_method(method) == "pct":
        enter = [executable, "exec", number, "--keep-env", "0", "--"]
    else:
        enter = ["lxc-attach", "-n", number, "--clear-env", "--"]
    inner = ["/bin/sh", "-c", f"umask 022; cd; {command}"] if isinstance(command, str) else list(command)
    become = ["sudo", "-n"] if sudo else []
    return shlex.join([*become, *enter, "/usr/bin/env", "-i", *ENVIRONMENT, *inner])
