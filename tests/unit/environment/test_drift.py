"""Drift of an environment, its repair, experiments in a copy, and the preinstalled profile."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import wheels
from dflash_ops.core import files
from dflash_ops.core.errors import OpsError
from dflash_ops.core.paths import Layout
from dflash_ops.environment import inspection
from environments import CPU, UNREACHABLE, arguments, build, edit_torch, inspect, site_packages


def plant_package(site: Path) -> str:
    (site / "flashinfer").mkdir()
    (site / "flashinfer/__init__.py").write_text("")
    (site / "flashinfer-0.6.1.dist-info").mkdir()
    (site / "flashinfer-0.6.1.dist-info/METADATA").write_text("Name: flashinfer\n")
    return "package: flashinfer-0.6.1"


def plant_pth(site: Path) -> str:
    (site / "evil.pth").write_text("import os\n")
    return "evil.pth (runs at every start"


def plant_sitecustomize(site: Path) -> str:
    (site / "sitecustomize.py").write_text("")
    return "sitecustomize.py (runs at every start"


def remove_file(site: Path) -> str:
    (site / "torch/functional.py").unlink()
    return "removed: lib/python"


@pytest.mark.parametrize(
    "damage",
    [plant_package, edit_torch, plant_pth, plant_sitecustomize, remove_file],
    ids=lambda damage: damage.__name__,
)
def test_drift_is_listed_stops_the_build_and_is_healed(
    layout: Layout, params: dict[str, Any], built: str, damage: Callable[[Path], str]
) -> None:
    message = damage(site_packages(layout, built))
    assert inspect(layout, params).state == "drifted"
    with pytest.raises(OpsError) as caught:
        build(layout, params)
    assert message in str(caught.value)
    assert "python_env_heal=true" in caught.value.remedy
    build(layout, {**params, "heal": True})
    assert inspection.find_drift(layout, built, full=True) == []
    text = (site_packages(layout, built) / "torch/functional.py").read_text()
    assert text == wheels.torch_files(CPU, cuda=None)["torch/functional.py"]


def test_full_check_finds_an_edit_that_keeps_size_and_time(layout: Layout, built: str) -> None:
    path = site_packages(layout, built) / "torch/functional.py"
    stat = path.stat()
    path.write_text(path.read_text().replace("return 1", "return 2"))
    os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    assert inspection.find_drift(layout, built) == []
    assert [drift.kind for drift in inspection.find_drift(layout, built, full=True)] == ["edited"]


def test_changed_mtime_alone_is_not_drift(layout: Layout, built: str) -> None:
    os.utime(site_packages(layout, built) / "torch/functional.py")
    assert inspection.find_drift(layout, built) == []


def test_running_its_python_by_hand_writes_no_files(layout: Layout, built: str) -> None:
    subprocess.run([layout.env(built) / "bin/python", "-c", "import torch.functional, transformers"], check=True)
    assert inspection.find_drift(layout, built, full=True) == []


def test_documented_experiment_command_does_not_change_the_environment(
    layout: Layout, built: str, tmp_path: Path, wheel_folder: Path
) -> None:
    wheels.make_wheel(
        wheel_folder, "sglang", "1.0", {"sglang.py": "", "torch/functional.py": "def einsum():\n    return 3\n"}
    )
    older = layout.root / "tools/uv-0.0.1/uv"  # from an earlier lockfile
    older.parent.mkdir()
    older.write_text("#!/bin/sh\nexit 9\n")
    os.utime(older, (1, 1))
    page = (wheels.UV_LOCK.parents[2] / "docs/environment.md").read_text()
    command = page.split("## Experiments")[1].split("```")[1].strip().replace("ENV_ID", built)
    env_vars = {**os.environ, "HOME": str(tmp_path), "UV_NO_INDEX": "1", "UV_FIND_LINKS": str(wheel_folder)}
    subprocess.run(["bash", "-c", command], check=True, cwd=layout.root, env=env_vars)
    copy = tmp_path / "experiment"
    output = subprocess.run([copy / "bin/demo"], capture_output=True, text=True, check=True).stdout
    assert output.strip() == str(copy)
    code = "import sglang, torch.functional; print(torch.functional.einsum())"
    output = subprocess.run([copy / "bin/python", "-c", code], capture_output=True, text=True, check=True).stdout
    assert output.strip() == "3"
    assert inspection.find_drift(layout, built, full=True) == []


def test_changed_base_python_is_drift(layout: Layout, built: str) -> None:
    path = layout.env(built) / "env.json"
    record = files.read_json(path) or {}
    record["base"]["version"] = "3.11.0"
    path.write_text(json.dumps(record))
    assert [drift.kind for drift in inspection.find_drift(layout, built)] == ["base"]


@pytest.fixture
def image(tmp_path: Path, wheel_folder: Path) -> Path:
    """Rented image: a Python with the pinned torch installed."""
    folder = tmp_path / "image"
    uv = str(Path(sys.executable).parent / "uv")
    subprocess.run([uv, "venv", "-q", "--python", sys.executable, str(folder)], check=True)
    torch = wheels.make_wheel(tmp_path / "w", "torch", "2.11.0+cu128", wheels.torch_files("2.11.0+cu128", cuda="12.8"))
    subprocess.run(
        [uv, "pip", "install", "-q", "--python", str(folder / "bin/python"), "--no-deps", str(torch)], check=True
    )
    return folder


@pytest.fixture
def preinstalled(layout: Layout, image: Path, tmp_path: Path, wheel_folder: Path) -> dict[str, Any]:
    """Arguments of a build that inherits torch from the image."""
    lock = wheels.make_lock(
        [*(tmp_path / "w").glob("*.whl"), wheel_folder / "transformers-5.8.1-py3-none-any.whl"],
        profile="cu128",
        indexes={"torch": UNREACHABLE},
        cuda="12.8",
    )
    return arguments(layout, lock, wheel_folder, profile="preinstalled", python=str(image / "bin/python"))


def test_preinstalled_inherits_torch_and_detects_its_edits(
    layout: Layout, preinstalled: dict[str, Any], image: Path
) -> None:
    built = build(layout, preinstalled)
    assert built["torch"]["version"] == "2.11.0+cu128"
    assert str(image) in built["torch"]["file"]
    assert inspect(layout, preinstalled).state == "complete"
    edited = next(image.rglob("torch/functional.py"))
    edited.write_text(edited.read_text() + "# patched\n")
    assert [drift.path for drift in inspection.find_drift(layout, built["env_id"])] == [str(edited)]


def test_preinstalled_requires_the_pinned_torch(layout: Layout, preinstalled: dict[str, Any]) -> None:
    lock = preinstalled["lock"].replace("torch==2.11.0+cu128", "torch==2.12.0+cu128")
    with pytest.raises(OpsError, match=r"torch is 2\.11\.0\+cu128, the lockfile pins 2\.12\.0\+cu128"):
        inspect(layout, {**preinstalled, "lock": lock})
