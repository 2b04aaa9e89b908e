"""What an operator may write about a container: every word that cannot work is named, whatever the host is like."""
from __future__ import annotations

import posixpath
import re
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from ..core.errors import OpsError
from .pct_command import check_vmid

if TYPE_CHECKING:
    from .container_config import Mount, Wanted

MIB_AT_LEAST = 512
CORES_AT_MOST = 8192
HOST_NAME = re.compile(r"(?!.{64})[a-z0-9]([a-z0-9-]*[a-z0-9])?(\.[a-z0-9]([a-z0-9-]*[a-z0-9])?)*", re.IGNORECASE)
SIZED = re.compile(r"[\w.-]+:(?!0+(\.0*)?$)\d+(\.\d+)?")
TEMPLATE = re.compile(r"[\w.-]+:\S+|/\S+")


def check(wanted: Wanted) -> None:
    """Raise OpsError that names every variable whose value cannot work."""
    found = list(problems(wanted))
    if found:
        numbered = found if len(found) == 1 else [f"({n}) {text}" for n, text in enumerate(found, start=1)]
        raise OpsError("\n".join(numbered))


def problems(wanted: Wanted) -> Iterator[str]:
    """Yield one sentence for each word that cannot work: variable, value, remedy."""
    if not is_vmid(wanted.vmid):
        yield f"gpu_container_vmid = {wanted.vmid!r} is no container number. Remedy: 100 or more, as `pct list` shows."
    for name, value, wrong, remedy in judgements(wanted):
        if wrong:
            yield f"gpu_container_{name} = {value!r} cannot be used. Remedy: {remedy}"
    yield from mount_problems(wanted.mounts)


def is_vmid(value: object) -> bool:
    """Tell whether Proxmox would take this as a container's number."""
    try:
        check_vmid(value)
    except OpsError:
        return False
    return True


def judgements(wanted: Wanted) -> tuple[tuple[str, object, bool, str], ...]:
    """Return (name, value, whether it is wrong, remedy) of every plain word."""
    indices = wanted.gpus.split(",")
    counted = re.fullmatch(r"(0|[1-9]\d*)(,(0|[1-9]\d*))*", wanted.gpus) and len({*indices}) == len(indices)
    return (
        ("hostname", wanted.hostname, bool(wanted.hostname) and not HOST_NAME.fullmatch(wanted.hostname),
         "Use letters, digits and hyphens, 63 at most."),
        ("cores", wanted.cores, not 0 <= wanted.cores <= CORES_AT_MOST, "Give a count; 0 leaves it as it is."),
        ("memory_mib", wanted.memory_mib, wanted.memory_mib != 0 and wanted.memory_mib < MIB_AT_LEAST,
         f"Give MiB, {MIB_AT_LEAST} or more; 0 leaves it as it is."),
        ("swap_mib", wanted.swap_mib, wanted.swap_mib < -1, "Give MiB; -1 leaves it as it is."),
        ("gpus", wanted.gpus, wanted.gpus not in ("all", "none") and not counted,
         "Use all, none, or indices such as 0,1,2,3, each once."),
        ("rootfs", wanted.rootfs, not SIZED.fullmatch(wanted.rootfs), "Give STORAGE:GIB, for example local-lvm:64."),
        ("network", wanted.network, not {"name", "bridge"} <= {*network_options(wanted.network)},
         "Give at least name and bridge, for example name=eth0,bridge=vmbr0,ip=dhcp."),
        ("template", wanted.template, bool(wanted.template) and not TEMPLATE.fullmatch(wanted.template),
         "Name it as `pveam list local` shows it, such as local:vztmpl/debian-12-standard_12.7-1_amd64.tar.zst."),
    )


def network_options(text: str) -> dict[str, str]:
    """Return the parts of a net0 option that have a value."""
    parts = [part.partition("=") for part in text.split(",")]
    return {name: value for name, _sign, value in parts if value}


def mount_problems(mounts: Sequence[Mount]) -> Iterator[str]:
    """Yield what is wrong with the mounts."""
    targets = [posixpath.normpath(mount.target) for mount in mounts]
    for mount in mounts:
        said = f"gpu_container_mounts: {mount.source!r} to {mount.target!r} cannot be used. Remedy:"
        clean = posixpath.normpath(mount.target)
        usable = mount.target.startswith("/") and clean != "/" and ".." not in mount.target.split("/")
        if not usable or targets.count(clean) > 1:
            yield f"{said} Give each mount one absolute path of its own as target, other than /."
        if not mount.source.startswith("/") and not SIZED.fullmatch(mount.source):
            yield f"{said} Give a folder of the host (an absolute path) or STORAGE:GIB as source."
        if re.search(r"[,\n]", mount.source + mount.target):
            yield f"{said} Proxmox separates options by commas; rename the folder."
