"""Real environments built by uv from small wheels."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path
from typing import Any

import wheels
from dflash_ops.core.jobs import Progress
from dflash_ops.core.paths import Layout
from dflash_ops.environment import build as environment_build
from dflash_ops.environment import inspection, uv_binary

CPU = "2.13.0+cpu"
UNREACHABLE = "http://127.0.0.1:9/simple"


def arguments(layout: Layout, lock: str, *folders: Path, **more: Any) -> dict[str, Any]:
    """Return module arguments; install the pinned uv on the box."""
    program = uv_binary.install_path(layout, uv_binary.uv_pin(wheels.UV_LOCK.read_text()))
    if not program.exists():
        program.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(Path(sys.executable).parent / "uv", program)
    return {
        "root": str(layout.root),
        "workspace": "",
        "profile": "cpu",
        "lock": lock,
        "lock_name": "test.lock",
        "uv_lock": wheels.UV_LOCK.read_text(),
        "python": "",
        "index_urls": {"default": "none"},
        "heal": False,
        "find_links": [str(folder) for folder in folders],
        "cache_dir": "",
        "install_packages": False,
        "self_test_gpus": False,
        **more,
    }


def build(layout: Layout, params: dict[str, Any]) -> dict[str, Any]:
    """Run the build job in this process."""
    layout.jobs.mkdir(parents=True, exist_ok=True)
    return environment_build.build(params, Progress(layout.jobs))


def inspect(layout: Layout, params: dict[str, Any]) -> inspection.Status:
    """Return the state of the requested environment."""
    return inspection.inspect(layout, inspection.Spec.from_params(params, layout))


def site_packages(layout: Layout, env_id: str) -> Path:
    """Return the site-packages folder of an environment."""
    return environment_build.site_packages(layout.env(env_id))


def shared_files(env: Path) -> list[Path]:
    """Return the files of an environment with more than one hard link."""
    return [path for path in env.rglob("*") if path.is_file() and path.lstat().st_nlink > 1]


def edit_torch(site: Path) -> str:
    """Append a line to torch/functional.py and return the expected message."""
    with (site / "torch/functional.py").open("a") as stream:
        stream.write("# patched\n")
    return "edited: lib/python"
