"""Validation of a container's specification, independent of the host."""
from __future__ import annotations

import posixpath
import re
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from ..core.errors import OpsError
from .pct_command import check_vmid

if TYPE_CHECKING:
    from .container_config import ContainerSpec, Mount

MIN_MEMORY_MIB = 512
MAX_CORES = 8192
HOST_NAME = re.compile(r"(?!.{64})[a-z0-9]([a-z0-9-]*[a-z0-9])?(\.[a-z0-9]([a-z0-9-]*[a-z0-9])?)*", re.IGNORECASE)
SIZED = re.compile(r"[\w.-]+:(?!0+(\.0*)?$)\d+(\.\d+)?")
TEMPLATE = re.compile(r"[\w.-]+:\S+|/\S+")


def check(spec: ContainerSpec) -> None:
    """Raise OpsError that names every variable with an invalid value."""
    found = list(problems(spec))
    if found:
        numbered = found if len(found) == 1 else [f"({n}) {text}" for n, text in enumerate(found, start=1)]
        raise OpsError("\n".join(numbered))


def problems(spec: ContainerSpec) -> Iterator[str]:
    """Yield one sentence for each invalid value: variable, value, remedy."""
    if not is_vmid(spec.vmid):
        yield (
            f"gpu_container_vmid = {spec.vmid!r} is not a container ID. Remedy: Use 100 or more, as `pct list` shows."
        )
    for name, value, invalid, remedy in value_checks(spec):
        if invalid:
            yield f"gpu_container_{name} = {value!r} is invalid. Remedy: {remedy}"
    yield from mount_problems(spec.mounts)


def is_vmid(value: object) -> bool:
    """Return true when Proxmox accepts the value as a container ID."""
    try:
        check_vmid(value)
    except OpsError:
        return False
    return True


def value_checks(spec: ContainerSpec) -> tuple[tuple[str, object, bool, str], ...]:
    """Return (name, value, true when invalid, remedy) of every scalar option."""
    indices = spec.gpus.split(",")
    distinct = re.fullmatch(r"(0|[1-9]\d*)(,(0|[1-9]\d*))*", spec.gpus) and len({*indices}) == len(indices)
    return (
        ("hostname", spec.hostname, bool(spec.hostname) and not HOST_NAME.fullmatch(spec.hostname),
         "Use letters, digits and hyphens, 63 at most."),
        ("cores", spec.cores, not 0 <= spec.cores <= MAX_CORES, "Give a count; 0 leaves it unchanged."),
        ("memory_mib", spec.memory_mib, spec.memory_mib != 0 and spec.memory_mib < MIN_MEMORY_MIB,
         f"Give MiB, {MIN_MEMORY_MIB} or more; 0 leaves it unchanged."),
        ("swap_mib", spec.swap_mib, spec.swap_mib < -1, "Give MiB; -1 leaves it unchanged."),
        ("gpus", spec.gpus, spec.gpus not in ("all", "none") and not distinct,
         "Use all, none, or indices such as 0,1,2,3, each once."),
        ("rootfs", spec.rootfs, not SIZED.fullmatch(spec.rootfs), "Give STORAGE:GIB, for example local-lvm:64."),
        ("network", spec.network, not {"name", "bridge"} <= {*network_options(spec.network)},
         "Give at least name and bridge, for example name=eth0,bridge=vmbr0,ip=dhcp."),
        ("template", spec.template, bool(spec.template) and not TEMPLATE.fullmatch(spec.template),
         "Give it as `pveam list local` shows it, such as local:vztmpl/debian-12-standard_12.7-1_amd64.tar.zst."),
    )


def network_options(text: str) -> dict[str, str]:
    """Return the non-empty parts of a net0 option."""
    parts = [part.partition("=") for part in text.split(",")]
    return {name: value for name, _sign, value in parts if value}


def mount_problems(mounts: Sequence[Mount]) -> Iterator[str]:
    """Yield one sentence for each invalid mount."""
    targets = [posixpath.normpath(mount.target) for mount in mounts]
    for mount in mounts:
        start = f"gpu_container_mounts: {mount.source!r} to {mount.target!r} is invalid. Remedy:"
        clean = posixpath.normpath(mount.target)
        usable = mount.target.startswith("/") and clean != "/" and ".." not in mount.target.split("/")
        if not usable or targets.count(clean) > 1:
            yield f"{start} Give each mount a different absolute path as target, other than /."
        if not mount.source.startswith("/") and not SIZED.fullmatch(mount.source):
            yield f"{start} Give a folder of the host (an absolute path) or STORAGE:GIB as source."
        if re.search(r"[,\n]", mount.source + mount.target):
            yield f"{start} Proxmox separates options by commas; rename the folder."
