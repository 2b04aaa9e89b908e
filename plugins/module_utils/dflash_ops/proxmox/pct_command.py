"""The one command line that reaches a container from a shell of its Proxmox host."""
from __future__ import annotations

import re
import shlex
from collections.abc import Sequence

from ..core.errors import OpsError

METHODS = ("pct", "lxc-attach")
LOWEST_VMID, HIGHEST_VMID = 100, 999_999_999
SEARCH_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
# Nothing of the Proxmox host comes along: the container's commands see these and what their task sets.
ENVIRONMENT = (
    f"PATH={SEARCH_PATH}",
    "HOME=/root",
    "USER=root",
    "LOGNAME=root",
    "SHELL=/bin/sh",
    "LANG=C.UTF-8",
)


def check_vmid(value: object) -> int:
    """Return the container's number, or raise OpsError naming `pct_vmid`, the value and the remedy."""
    text = str(value).strip() if isinstance(value, (int, str)) and not isinstance(value, bool) else ""
    if not re.fullmatch(r"[0-9]{1,9}", text) or not LOWEST_VMID <= int(text) <= HIGHEST_VMID:
        raise OpsError(
            f"pct_vmid = {value!r} is no container number.",
            remedy=f"Set pct_vmid to a whole number from {LOWEST_VMID} on, as `pct list` on the host shows it.",
        )
    return int(text)


def check_method(value: object) -> str:
    """Return the method, or raise OpsError naming `pct_method`."""
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
    """Return one line for the host's shell that runs `command` as root inside container `vmid`.

    Args:
        vmid: the container's number.
        command: a line for the container's /bin/sh, or the words of a command that needs no shell.
        executable: where pct is on the host; not used by lxc-attach.
        method: `pct`, or `lxc-attach` to spare pct's start-up.
        sudo: whether the login on the host needs sudo to become root there.
    """
    number = str(check_vmid(vmid))
    if check_method(method) == "pct":
        enter = [executable, "exec", number, "--keep-env", "0", "--"]
    else:
        enter = ["lxc-attach", "-n", number, "--clear-env", "--"]
    inner = ["/bin/sh", "-c", f"umask 022; cd; {command}"] if isinstance(command, str) else list(command)
    become = ["sudo", "-n"] if sudo else []
    return shlex.join([*become, *enter, "/usr/bin/env", "-i", *ENVIRONMENT, *inner])
