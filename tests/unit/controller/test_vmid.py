"""A Proxmox host and the boxes behind it must resolve to one container ID."""

from __future__ import annotations

import pytest
from dflash_controller.vmid import InventoryHost, resolve_vmid
from dflash_ops.core.errors import OpsError

LOGIN, OTHER_LOGIN = ("192.0.2.10", "22"), ("192.0.2.11", "22")


def box(vmid: object, login: tuple[str, str] = LOGIN, name: str = "trainer") -> InventoryHost:
    return InventoryHost(name, login, vmid)


def host(vmid: object) -> InventoryHost:
    return InventoryHost("pve", LOGIN, vmid)


@pytest.mark.parametrize(
    ("given", "boxes", "expected"),
    [
        (0, [], 200),
        (0, [box(210)], 210),
        (None, [box("210"), box(210, name="second")], 210),
        (0, [box(210, OTHER_LOGIN)], 200),
        (0, [box(210, ("192.0.2.10", "2222"))], 200),
        (201, [], 201),
        (201, [box(210, OTHER_LOGIN)], 201),
        (201, [box(200), box(201, name="other")], 201),
        ("200", [box(200)], "200"),
        (12, [box(200)], 12),  # invalid: reported by the validation of values
        (201, [box("two")], 201),
    ],
)
def test_host_and_box_share_one_id(given: object, boxes: list[InventoryHost], expected: object) -> None:
    assert resolve_vmid(host(given), boxes) == expected


def test_conflicting_ids_are_refused_with_a_remedy() -> None:
    message = (
        r"gpu_container_vmid = 201 of pve, but pct_vmid = 200 \(trainer\) .*one container.*another"
        ".*Remedy: remove gpu_container_vmid"
    )
    with pytest.raises(OpsError, match=message):
        resolve_vmid(host(201), [box(200), box(201, OTHER_LOGIN, "elsewhere")])


def test_several_boxes_need_an_id_on_the_host() -> None:
    message = r"gpu_container_vmid of pve is not set, .* 200 \(trainer\), 201 \(other\).*Remedy: set gpu_container_vmid"
    with pytest.raises(OpsError, match=message):
        resolve_vmid(host(0), [box(200), box(201, name="other")])
