"""Parsing of lockfiles; every invalid line is reported."""

from __future__ import annotations

from pathlib import Path

import pytest
from dflash_ops.core.errors import OpsError
from dflash_ops.environment import lockfile

ONE, TWO = "1" * 64, "2" * 64
LOCKFILE = f"""\
# profile: cu128
# python: 3.11 3.12
# platform: x86_64-manylinux_2_28
# index torch: https://index.example/cu128
numpy==2.4.6 ; python_full_version < '3.12' \\
    --hash=sha256:{ONE} \\
    --hash=sha256:{TWO}
    # via torch
numpy==2.5.5 ; python_full_version >= '3.12' \\
    --hash=sha256:{ONE}
torch==2.11.0+cu128 \\
    --hash=sha256:{TWO}
"""


def test_complete_lockfile_is_parsed() -> None:
    lock = lockfile.require_complete(LOCKFILE, name="cu128.lock")
    assert (lock.profile, lock.pythons, lock.platform) == ("cu128", ("3.11", "3.12"), "x86_64-manylinux_2_28")
    assert [(pin.name, pin.version, len(pin.hashes), pin.line) for pin in lock.pins] == [
        ("numpy", "2.4.6", 2, 5),
        ("numpy", "2.5.5", 1, 9),
        ("torch", "2.11.0+cu128", 1, 11),
    ]
    assert lock.indexes == {"torch": "https://index.example/cu128"}


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("+cu128 ", " ", "line 11: torch==2.11.0 has no local version"),
        (f">= '3.12' \\\n    --hash=sha256:{ONE}", ">= '3.12'", "line 9: numpy==2.5.5 has no --hash=sha256:"),
        (TWO + "\n    # via", TWO[:-1] + "\n    # via", "line 5: numpy==2.4.6 has a hash that is not a SHA-256"),
        ("torch==2.11.0", "torch>=2.11.0", "line 11: `torch>=2.11.0+cu128` is not pinned"),
        ("torch==2.11.0+cu128", "torch==2.*", "is not pinned"),
        ("torch==2.11.0+cu128", "torch @ https://x.example/t.whl", "is not pinned"),
        (
            "torch==",
            "--extra-index-url https://x.example\ntorch==",
            "line 11: `--extra-index-url https://x.example`: options are not allowed",
        ),
        (
            "# index torch",
            "# index numpy",
            "line 11: torch==2.11.0+cu128 is a local version, but there is no `# index torch: URL` line",
        ),
        ("numpy==2.4", "# index torch: https://other.example\nnumpy==2.4", "line 5: torch has two indexes"),
        (" ; python_full_version >= '3.12'", "", "line 9: numpy is pinned again (first in line 5)"),
        ("# profile: cu128\n", "", "has no `# profile:` line"),
    ],
)
def test_invalid_line_is_named(old: str, new: str, message: str) -> None:
    assert LOCKFILE.count(old) >= 1
    with pytest.raises(OpsError) as caught:
        lockfile.require_complete(LOCKFILE.replace(old, new, 1), name="cu128.lock")
    assert message in str(caught.value)
    assert "make lock" in caught.value.remedy


@pytest.mark.parametrize(
    ("name", "torch", "pythons"),
    [
        ("cpu", "2.13.0+cpu", {"3.11", "3.12", "3.13"}),
        ("cu128", "2.11.0+cu128", {"3.10", "3.11", "3.12", "3.13"}),
    ],
)
def test_project_lockfiles_are_complete(repo: Path, name: str, torch: str, pythons: set[str]) -> None:
    lock = lockfile.require_complete((repo / "trainer/locks" / f"{name}.lock").read_text(), name=f"{name}.lock")
    assert (lock.profile, lock.version_of("torch"), set(lock.pythons)) == (name, torch, pythons)
    pin = next(pin for pin in lock.pins if pin.name == "torch")
    assert len(pin.hashes) == len(pythons)
    assert lock.version_of("transformers") == "5.8.1"
