"""Fixtures of the environment tests: a folder of small wheels and a built environment."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import wheels
from dflash_ops.core.paths import Layout
from environments import CPU, UNREACHABLE, arguments, build


@pytest.fixture
def wheel_folder(tmp_path: Path) -> Path:
    """Folder of wheels: torch for CPU, transformers, and a package with a console script."""
    folder = tmp_path / "wheels"
    wheels.make_wheel(folder, "torch", CPU, wheels.torch_files(CPU, cuda=None))
    wheels.make_wheel(folder, "transformers", "5.8.1", wheels.TRANSFORMERS)
    wheels.make_wheel(
        folder, "demo-tool", "1.0", {"demo_tool.py": "import sys\ndef main():\n    print(sys.prefix)\n"}, script="demo"
    )
    return folder


@pytest.fixture
def params(wheel_folder: Path, layout: Layout) -> dict[str, Any]:
    """Arguments of a build that needs no network."""
    lock = wheels.make_lock(sorted(wheel_folder.glob("*.whl")), indexes={"torch": UNREACHABLE})
    return arguments(layout, lock, wheel_folder)


@pytest.fixture
def built(layout: Layout, params: dict[str, Any]) -> str:
    """Name of an environment that was built from the default arguments."""
    return str(build(layout, params)["env_id"])
