"""Which container a Proxmox host and the boxes behind it mean: one number, that is written once, at the box."""
from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from dflash_ops.core.errors import OpsError
from dflash_ops.proxmox.validation import is_vmid

USUAL = 200  # where nothing is written at all


@dataclass(frozen=True)
class Named:
    """A host of the inventory, and the container that its variables name.

    Args:
        name: its name in the inventory.
        login: address and port of the ssh login; for a box behind a Proxmox host those of that host.
        number: what is written, as an int or text; 0 or None when nothing is.
    """

    name: str
    login: tuple[str, str]
    number: object = None


def meant(host: Named, boxes: Iterable[Named]) -> object:
    """Return the number of the container that `host` shall provision, given every box that pct reaches.

    What is no number at all comes back as it is: to judge words is not done here.

    Raises:
        OpsError: the box behind this host is another container, or nothing says which of several is meant.
    """
    behind = [box for box in boxes if box.login == host.login and is_vmid(box.number)]
    numbers = sorted({int(str(box.number)) for box in behind})
    if not host.number:
        return only(numbers, host, behind)
    if is_vmid(host.number) and numbers and int(str(host.number)) not in numbers:
        raise OpsError(
            f"gpu_container_vmid = {host.number} of {host.name}, but pct_vmid = {told(behind)} behind the same Proxmox"
            " host: provision.yml would make one container, and deploy.yml would go into another.",
            remedy="leave gpu_container_vmid out (pct_vmid counts for both), or give both the same number; a container"
            " of its own is a box of its own in the group trainers",
        )
    return host.number


def only(numbers: Sequence[int], host: Named, behind: Iterable[Named]) -> int:
    """Return the one number there is, or the usual one where there is none."""
    if len(numbers) > 1:
        raise OpsError(
            f"gpu_container_vmid of {host.name} is not set, and boxes behind it have several pct_vmid: {told(behind)}.",
            remedy=f"set gpu_container_vmid of {host.name} to the one that provision.yml shall make",
        )
    return numbers[0] if numbers else USUAL


def told(boxes: Iterable[Named]) -> str:
    return ", ".join(f"{box.number} ({box.name})" for box in boxes)
