"""One lockfile gives the same environment in two real containers, from one pushed wheelhouse."""
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
    """Return env.json of a container's only environment, read without our connection."""
    found = lab.inside(vmid, "sh", "-c", f"cat '{ROOT}'/envs/*/env.json").stdout
    return dict(json.loads(found))


def hashes(env: dict[str, Any]) -> dict[str, str]:
    """Return file -> SHA-256, without files that contain timestamps."""
    return {name: row[2] for name, row in env["files"].items()
            if not name.endswith((".pyc", ".dist-info/uv_cache.json", ".dist-info/RECORD"))}


def test_one_lockfile_gives_the_same_fingerprints_in_two_containers(
    lab: Lab, tmp_path: Path, wheelhouse: Path, lock: Path
) -> None:
    output = deploy(lab, tmp_path, wheelhouse, lock)
    first, second = record(lab, UNPRIVILEGED), record(lab, PRIVILEGED)
    assert (first["env_id"], first["fingerprint"]) == (second["env_id"], second["fingerprint"])
    assert hashes(first) == hashes(second)
    assert first["files"].keys() == second["files"].keys()
    torch = next(name for name in hashes(first) if name.endswith("torch/functional.py"))
    for vmid in BOXES.values():
        shown = lab.inside(vmid, "sha256sum", f"{ROOT}/envs/{first['env_id']}/{torch}").stdout.split()[0]
        assert shown == hashes(first)[torch]
    assert first["packages"] == second["packages"]
    assert [row["wheel_sha256"] for row in first["packages"] if row["name"] == "torch"] == [
        wheels.sha256(next(wheelhouse.glob("torch-*.whl")))
    ]
    assert output.count("is complete: 3 packages") == 2
    repeated = deploy(lab, tmp_path, wheelhouse, lock)
    assert repeated.count("is unchanged: 3 packages") == 2
    assert "copying" not in repeated
