"""The same lock on two real containers, through the playbook and the pct connection, from one pushed wheelhouse."""
from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from conftest import REPO, login_variables
from dflash_lab.lab import Lab
from dflash_lab.layout import PRIVILEGED, UNPRIVILEGED
from small_wheels import lock_of, make_wheelhouse, wheels

ROOT = "/opt/dflash two"
BOXES = {"one": UNPRIVILEGED, "two": PRIVILEGED}


@pytest.fixture(scope="module")
def wheelhouse(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_wheelhouse(tmp_path_factory.mktemp("wheelhouse"))


@pytest.fixture(scope="module")
def lock(wheelhouse: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return lock_of(wheelhouse, tmp_path_factory.mktemp("locks"))


def deploy(lab: Lab, tmp_path: Path, wheelhouse: Path, lock: Path, *more: str) -> str:
    """Run `relaunch.yml --tags env` for both containers; return what it printed."""
    variables = {
        "dflash_root": ROOT, "dflash_workspace": "", "dflash_profile": "cpu", "python_env_lock_file": str(lock),
        "python_env_wheelhouse": str(wheelhouse), "python_env_index_urls": {"default": "none", "torch": "none"},
    }
    hosts = {name: login_variables(lab) | variables | {"pct_vmid": vmid} for name, vmid in BOXES.items()}
    if not (tmp_path / "group_vars").exists():
        (tmp_path / "group_vars").symlink_to(REPO / "group_vars")
    (tmp_path / "inventory.json").write_text(json.dumps({"trainers": {"hosts": hosts}}), encoding="utf-8")
    command = [str(Path(sys.executable).with_name("ansible-playbook")), "relaunch.yml", "--tags", "env",
               "-i", str(tmp_path / "inventory.json"), *more]
    done = subprocess.run(command, cwd=REPO, capture_output=True, text=True, check=False,
                          env={**os.environ, "ANSIBLE_NOCOLOR": "1"})
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def record(lab: Lab, vmid: int) -> dict[str, Any]:
    """Return env.json of the one environment of a container, read from outside."""
    found = lab.inside(vmid, "sh", "-c", f"cat '{ROOT}'/envs/*/env.json").stdout
    return dict(json.loads(found))


def hashes(env: dict[str, Any]) -> dict[str, str]:
    """Return file to SHA-256, without what holds times."""
    return {name: row[2] for name, row in env["files"].items()
            if not name.endswith((".pyc", ".dist-info/uv_cache.json", ".dist-info/RECORD"))}


def test_the_same_lock_on_two_containers_gives_the_same_fingerprint_list(
    lab: Lab, tmp_path: Path, wheelhouse: Path, lock: Path
) -> None:
    said = deploy(lab, tmp_path, wheelhouse, lock)
    one, two = record(lab, UNPRIVILEGED), record(lab, PRIVILEGED)
    assert (one["env_id"], one["fingerprint"]) == (two["env_id"], two["fingerprint"])
    assert hashes(one) == hashes(two)
    assert one["files"].keys() == two["files"].keys()
    torch = next(name for name in hashes(one) if name.endswith("torch/functional.py"))
    for vmid in BOXES.values():
        told = lab.inside(vmid, "sha256sum", f"{ROOT}/envs/{one['env_id']}/{torch}").stdout.split()[0]
        assert told == hashes(one)[torch]
    assert one["packages"] == two["packages"]
    assert [row["wheel_sha256"] for row in one["packages"] if row["name"] == "torch"] == [
        wheels.sha256(next(wheelhouse.glob("torch-*.whl")))
    ]
    assert said.count("is complete: 3 packages") == 2
    again = deploy(lab, tmp_path, wheelhouse, lock)
    assert again.count("is unchanged: 3 packages") == 2
    assert "copying" not in again
