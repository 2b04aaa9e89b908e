"""A wheelhouse of tiny wheels with real package names, and lockfiles for it, for builds in the lab's containers."""
from __future__ import annotations

import sys
import zipfile
from collections.abc import Mapping
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[1] / "unit"))
import wheels
from dflash_ops.environment import uv_binary

TORCH = "2.13.0+cpu"


def make_wheelhouse(folder: Path, more: Mapping[str, Mapping[str, str]] | None = None) -> Path:
    """Fill a folder with tiny wheels (one with a console script), those of `more`, and the controller's uv."""
    wheels.make_wheel(folder, "torch", TORCH, wheels.torch_files(TORCH, cuda=None))
    wheels.make_wheel(folder, "transformers", "5.8.1", wheels.TRANSFORMERS)
    wheels.make_wheel(folder, "demo-tool", "1.0", {"demo_tool.py": "def main():\n    print(1)\n"}, script="demo")
    for name, files in (more or {}).items():
        wheels.make_wheel(folder, name, "1.0", files)
    version = uv_binary.uv_pin(wheels.UV_LOCK.read_text()).version
    with zipfile.ZipFile(folder / f"uv-{version}-py3-none-manylinux_2_17_x86_64.whl", "w") as wheel:
        wheel.write(Path(sys.executable).parent / "uv", f"uv-{version}.data/scripts/uv")
    return folder


def lock_of(wheelhouse: Path, folder: Path, *, remark: str = "") -> Path:
    """Write the lockfiles of these wheels and of uv; a remark makes it a different lockfile of the same wheels."""
    uv = next(wheelhouse.glob("uv-*.whl"))
    (folder / "uv.lock").write_text(f"uv=={uv.name.split('-')[1]} --hash=sha256:{wheels.sha256(uv)}\n")
    pinned = [path for path in sorted(wheelhouse.glob("*.whl")) if path != uv]
    text = wheels.make_lock(pinned, indexes={"torch": "http://127.0.0.1:9/simple"})
    (folder / "cpu.lock").write_text(text + f"# {remark}\n" * bool(remark))
    return folder / "cpu.lock"
