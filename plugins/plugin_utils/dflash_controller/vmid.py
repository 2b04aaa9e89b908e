"""Resolve the container ID for a Proxmox host and the boxes behind it: one ID, set once, at the box."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from dflash_ops.core.errors import OpsError
from dflash_ops.proxmox.validation import is_vmid

DEFAULT_VMID = 200


@dataclass(frozen=True)
class InventoryHost:
    """An inventory host and the container that its variables name.

    Args:
        name: its name in the inventory.
        login: address and port of the ssh login; for a box behind a Proxmox host, those of that host.
        vmid: the container ID as given, an int or a string; 0 or None when not set.
    """

    name: str
    login: tuple[str, str]
    vmid: object = None


def resolve_vmid(host: InventoryHost, boxes: Iterable[InventoryHost]) -> object:
    """Return the ID of the container to provision on `host`.

    Args:
        host: the Proxmox host. An invalid ID is returned unchanged, because the value is validated elsewhere.
        boxes: every box that is reached through pct.

    Raises:
        OpsError: the box behind this host uses another ID, or several boxes are behind it and the host has no ID.
    """
    behind = [box for box in boxes if box.login == host.login and is_vmid(box.vmid)]
    vmids = sorted({int(str(box.vmid)) for box in behind})
    if not host.vmid:
        return single_vmid(vmids, host, behind)
    if is_vmid(host.vmid) and vmids and int(str(host.vmid)) not in vmids:
        raise OpsError(
            f"gpu_container_vmid = {host.vmid} of {host.name}, but pct_vmid = {listed(behind)} behind the same Proxmox"
            " host: provision.yml would configure one container, and deploy.yml would use another.",
            remedy="remove gpu_container_vmid (pct_vmid is used for both), or give both the same ID; for a second"
            " container, add a box to the group trainers",
        )
    return host.vmid


def single_vmid(vmids: Sequence[int], host: InventoryHost, behind: Iterable[InventoryHost]) -> int:
    """Return the only ID, or the default when there is none.

    Raises:
        OpsError: there are several.
    """
    if len(vmids) > 1:
        raise OpsError(
            f"gpu_container_vmid of {host.name} is not set, and boxes behind it have different pct_vmid:"
            f" {listed(behind)}.",
            remedy=f"set gpu_container_vmid of {host.name} to the one that provision.yml should configure",
        )
    return vmids[0] if vmids else DEFAULT_VMID


def listed(boxes: Iterable[InventoryHost]) -> str:
    """Return the boxes as text: each ID with the box's name."""
    return ", ".join(f"{box.vmid} ({box.name})" for box in boxes)
