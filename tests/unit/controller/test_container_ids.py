"""A Proxmox host and the boxes behind it name one container, or nothing is changed."""

from __future__ import annotations

import pytest
from dflash_controller.container_ids import Named, meant
from dflash_ops.core.errors import OpsError

HERE, THERE = ("192.0.2.10", "22"), ("192.0.2.11", "22")


def box(number: object, login: tuple[str, str] = HERE, name: str = "trainer") -> Named:
    return Named(name, login, number)


def host(number: object) -> Named:
    return Named("pve", HERE, number)


@pytest.mark.parametrize(
    ("written", "boxes", "wanted"),
    [
        (0, [], 200),
        (0, [box(210)], 210),
        (None, [box("210"), box(210, name="again")], 210),
        (0, [box(210, THERE)], 200),
        (0, [box(210, ("192.0.2.10", "2222"))], 200),
        (201, [], 201),
        (201, [box(210, THERE)], 201),
        (201, [box(200), box(201, name="other")], 201),
        ("200", [box(200)], "200"),
        (12, [box(200)], 12),  # no container number: told where words are judged
        (201, [box("two")], 201),
    ],
)
def test_one_number(written: object, boxes: list[Named], wanted: object) -> None:
    assert meant(host(written), boxes) == wanted


def test_a_contradiction_names_both_and_the_remedy() -> None:
    words = (
        r"gpu_container_vmid = 201 of pve, but pct_vmid = 200 \(trainer\) .*one container.*another"
        ".*Remedy: leave gpu_container_vmid out"
    )
    with pytest.raises(OpsError, match=words):
        meant(host(201), [box(200), box(201, THERE, "elsewhere")])


def test_several_boxes_and_no_number() -> None:
    words = r"gpu_container_vmid of pve is not set, .* 200 \(trainer\), 201 \(other\).*Remedy: set gpu_container_vmid"
    with pytest.raises(OpsError, match=words):
        meant(host(0), [box(200), box(201, name="other")])
