"""A venv of its own for a peer's package, on top of the environment that runs the script.

The venv holds the peer alone (installed without its dependencies, which are many and pinned) and sees this
environment's torch and transformers, so both programs compute with the same libraries and nothing here is changed.
"""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parent.parent
_MARK = "DFLASH_BENCH_PEER"


def run_beside(requirement: str) -> None:
    """Go on in a venv that has `requirement`: returns there, and never returns in the calling process."""
    if os.environ.get(_MARK) == requirement:
        return
    python = _python_with(requirement)
    paths = [str(REPOSITORY / "trainer"), *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = os.environ | {_MARK: requirement, "PYTHONPATH": os.pathsep.join(paths)}
    os.execve(python, [str(python), *sys.argv], environment)


def _python_with(requirement: str) -> Path:
    """The venv's interpreter; the venv is made once a requirement and interpreter."""
    tag = f"{requirement.replace('==', '-')}-py{sys.version_info.major}{sys.version_info.minor}"
    folder = REPOSITORY / ".cache" / "bench" / tag
    python = folder / "bin" / "python"
    ready = folder / "ready"
    if not ready.is_file():
        venv.EnvBuilder(with_pip=True, clear=True).create(folder)
        command = [str(python), "-m", "pip", "install", "--quiet", "--no-deps", requirement]
        subprocess.run(command, check=True)
        ready.touch()
    packages = Path(sysconfig.get_path("purelib", vars={"base": str(folder), "platbase": str(folder)}))
    (packages / "beneath.pth").write_text(sysconfig.get_path("purelib") + "\n", encoding="utf-8")
    return python
