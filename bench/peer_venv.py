"""A separate venv for a peer's package, on top of the environment that runs the script.

The venv contains only the peer, without its many pinned dependencies, and sees this environment's torch and
transformers. Both programs compute with the same libraries, and this environment is not changed.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parent.parent
_MARK = "DFLASH_BENCH_PEER"

CANNOT_INSTALL = 3
"""Exit code if the peer cannot be installed."""


def run_in_peer_venv(requirement: str) -> None:
    """Re-execute the script in a venv with `requirement`; returns only in the new process."""
    if os.environ.get(_MARK) == requirement:
        return
    python = _python_with(requirement)
    paths = [str(REPOSITORY / "trainer"), *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = os.environ | {_MARK: requirement, "PYTHONPATH": os.pathsep.join(paths)}
    os.execve(python, [str(python), *sys.argv], environment)


def _python_with(requirement: str) -> Path:
    """Return the venv's interpreter; create the venv once per requirement and interpreter."""
    tag = f"{requirement.replace('==', '-')}-py{sys.version_info.major}{sys.version_info.minor}"
    folder = REPOSITORY / ".cache" / "bench" / tag
    python = folder / "bin" / "python"
    ready = folder / "ready"
    if not ready.is_file():
        _install(folder, python, requirement)
        ready.touch()
    packages = Path(sysconfig.get_path("purelib", vars={"base": str(folder), "platbase": str(folder)}))
    base_paths = [path for path in sys.path if Path(path).name == "site-packages"]
    (packages / "base.pth").write_text("\n".join(base_paths) + "\n", encoding="utf-8")
    return python


def _install(folder: Path, python: Path, requirement: str) -> None:
    """Create the venv and install with uv if available (Debian's python lacks ensurepip), else with pip."""
    uv = shutil.which("uv") or shutil.which("uv", path=str(REPOSITORY / ".venv" / "bin"))
    venv.EnvBuilder(with_pip=uv is None, clear=True).create(folder)
    installer = [uv, "pip", "install", "--python", str(python)] if uv else [str(python), "-m", "pip", "install"]
    environment = os.environ | {"UV_SYSTEM_CERTS": "1", "UV_NO_CONFIG": "1"}
    done = subprocess.run([*installer, "--quiet", "--no-deps", requirement], check=False, env=environment)
    if done.returncode:
        print(f"{requirement} could not be installed, see the output above", file=sys.stderr)
        raise SystemExit(CANNOT_INSTALL)
