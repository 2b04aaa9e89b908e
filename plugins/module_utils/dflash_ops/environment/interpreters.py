"""Find the base Python of an environment, and check and install the Debian packages that a run needs."""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
import subprocess
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from ..core.errors import OpsError
from ..core.jobs import plain_environment
from ..core.paths import SYSTEM_PATH
from .sources import without_password

PROBE = """
import importlib.metadata, importlib.util, json, os, platform, sys, sysconfig
specs = [importlib.util.find_spec(name) for name in ("sitecustomize", "usercustomize")]
dists = {d.metadata["Name"].lower().replace("_", "-"): d.version for d in importlib.metadata.distributions()}
print(json.dumps({
    "executable": os.path.realpath(sys._base_executable if hasattr(sys, "_base_executable") else sys.executable),
    "version": platform.python_version(), "short": "%d.%d" % sys.version_info[:2], "machine": platform.machine(),
    "headers": os.path.exists(os.path.join(sysconfig.get_paths()["include"], "Python.h")),
    "customize": [spec.origin for spec in specs if spec and spec.origin], "distributions": dists,
    "purelib": sysconfig.get_paths()["purelib"]}))
"""
# Programs that a run needs in addition to the environment, and their Debian packages.
PROGRAMS = (("tmux", "tmux"), ("g++", "g++"))


@dataclasses.dataclass(frozen=True)
class Interpreter:
    """Python interpreter of the box.

    Args:
        path: as requested or found; the python of a virtual environment is not resolved (an image may bring one).
        executable: the resolved file.
        version: for example `3.11.2`.
        short: for example `3.11`.
        machine: processor, for example `x86_64`.
        headers: Python.h exists, which torch.compile and Triton need.
        customize: sitecustomize and usercustomize modules that run at every start.
        distributions: version by name of the packages installed in it.
        purelib: its site-packages folder.
    """

    path: Path
    executable: Path
    version: str
    short: str
    machine: str
    headers: bool
    customize: tuple[Path, ...]
    distributions: dict[str, str]
    purelib: Path


def probe(path: Path | str) -> Interpreter | None:
    """Run an interpreter and return its facts, or None if it does not run."""
    try:
        done = subprocess.run(
            [path, "-I", "-c", PROBE],
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
            env=plain_environment(),
            cwd="/",
        )
        facts: dict[str, Any] = json.loads(done.stdout)
    except (OSError, ValueError, subprocess.TimeoutExpired):
        return None
    return Interpreter(
        path=Path(path),
        executable=Path(facts["executable"]),
        version=facts["version"],
        short=facts["short"],
        machine=facts["machine"],
        headers=facts["headers"],
        purelib=Path(facts["purelib"]),
        customize=tuple(Path(origin) for origin in facts["customize"]),
        distributions=facts["distributions"],
    )


def candidates(pythons: Iterable[str]) -> Iterator[str]:
    """Yield existing interpreters of the given versions, 3.12 first, then `python3`."""
    preferred = ("3.12", "3.11", "3.13", "3.10")
    order = sorted(pythons, key=lambda short: preferred.index(short) if short in preferred else len(preferred))
    for folder in ("/usr/bin", "/usr/local/bin"):
        for name in [*(f"python{short}" for short in order), "python3"]:
            if os.access(f"{folder}/{name}", os.X_OK):
                yield f"{folder}/{name}"


def find(requested: str, pythons: tuple[str, ...], *, required_package: str = "") -> Interpreter:
    """Return the interpreter to build on.

    Args:
        requested: path, or version such as `3.12`, or empty for the first that fits.
        pythons: versions that the lockfile has files for.
        required_package: a distribution that it must have, for `preinstalled`.

    Raises:
        OpsError: no interpreter fits; the message lists all that were tried.
    """
    if "/" in requested:
        paths = [requested]
    elif requested:
        paths = [f"{folder}/python{requested}" for folder in ("/usr/bin", "/usr/local/bin")]
    else:
        paths = list(candidates(pythons))
        if required_package:
            images = ("/opt/conda/bin/python", "/venv/main/bin/python")
            paths = [path for path in (*images, *paths) if os.access(path, os.X_OK)]
    rejected = []
    for path in paths:
        python = probe(path)
        if python is None:
            rejected.append(f"{path} does not run")
        elif python.short not in pythons:
            rejected.append(f"{path} is {python.version}")
        elif required_package and required_package not in python.distributions:
            rejected.append(f"{path} has no {required_package}")
        else:
            return python
    option = f"python_env_python={requested}: " if requested else ""
    package = f" with {required_package}" if required_package else ""
    raise OpsError(
        f"{option}no Python {', '.join(pythons)}{package} on this box "
        f"(tried: {'; '.join(rejected) or 'nothing in /usr/bin and /usr/local/bin'}).",
        remedy="install one of these versions, or set python_env_python to its path",
    )


def missing_packages(python: Interpreter) -> list[str]:
    """Return the Debian packages that a run needs and the box lacks."""
    packages = [package for program, package in PROGRAMS if not shutil.which(program, path=SYSTEM_PATH)]
    if not python.headers:
        packages.append("python3-dev" if python.executable.name == _default_python() else f"python{python.short}-dev")
    return packages


def _default_python() -> str:
    return Path(os.path.realpath("/usr/bin/python3")).name


def root_prefix() -> list[str] | None:
    """Return the command prefix that runs a command as root, or None if this user has no root access."""
    if os.geteuid() == 0:
        return []
    if shutil.which("sudo", path=SYSTEM_PATH):
        sudo = subprocess.run(["sudo", "-n", "true"], capture_output=True, check=False, env=plain_environment())
        if sudo.returncode == 0:
            return ["sudo", "-n"]
    return None


def require_installable(packages: list[str]) -> None:
    """Check that this user can install the missing packages.

    Raises:
        OpsError: root access or apt-get is missing; the message lists every package, the remedy has the command.
    """
    if packages and (root_prefix() is None or not shutil.which("apt-get", path=SYSTEM_PATH)):
        raise OpsError(
            f"Missing on this box: {', '.join(packages)} (searched {SYSTEM_PATH}).",
            remedy=f"as root: apt-get install -y {' '.join(packages)}; or let Ansible become root "
            "(python_env_become=true)",
            facts={"missing_packages": packages},
        )


def install_packages(packages: list[str]) -> None:
    """Install Debian packages without prompts.

    Raises:
        OpsError: apt-get failed; the message has its last lines.
    """
    prefix = root_prefix() or []
    environment = plain_environment({"DEBIAN_FRONTEND": "noninteractive"})
    apt = ["apt-get", "-q", "-o", "Acquire::Retries=3", "-o", "DPkg::Lock::Timeout=300"]
    for command in ([*apt, "update"], [*apt, "install", "-y", "--no-install-recommends", *packages]):
        full = [*prefix, *(["env", "DEBIAN_FRONTEND=noninteractive"] if prefix else []), *command]
        done = subprocess.run(full, capture_output=True, text=True, check=False, env=environment)
        print(done.stdout, done.stderr, flush=True)
        if done.returncode != 0:
            raise OpsError(
                f"`{' '.join(command)}` failed: {without_password(done.stderr.strip()[-800:])}",
                remedy="run it by hand as root and check the box's package sources",
            )
