"""Find the python that an environment is built on, and what else the box must have installed."""

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
found = [importlib.util.find_spec(name) for name in ("sitecustomize", "usercustomize")]
dists = {d.metadata["Name"].lower().replace("_", "-"): d.version for d in importlib.metadata.distributions()}
print(json.dumps({
    "executable": os.path.realpath(sys._base_executable if hasattr(sys, "_base_executable") else sys.executable),
    "version": platform.python_version(), "short": "%d.%d" % sys.version_info[:2], "machine": platform.machine(),
    "headers": os.path.exists(os.path.join(sysconfig.get_paths()["include"], "Python.h")),
    "customize": [spec.origin for spec in found if spec and spec.origin], "distributions": dists,
    "purelib": sysconfig.get_paths()["purelib"], "asked": sys.executable}))
"""
# What a run needs beside the environment: the program, the Debian package that brings it, and why.
PROGRAMS = (("tmux", "tmux"), ("g++", "g++"))


@dataclasses.dataclass(frozen=True)
class Interpreter:
    """One python of the box.

    Args:
        path: as it was asked for or found; a virtual environment's python stays one (a rented image may be one).
        executable: the file behind it.
        version: as `3.11.2`.
        short: as `3.11`.
        machine: processor, as `x86_64`.
        headers: Python.h is there, which torch.compile and Triton need.
        customize: sitecustomize and usercustomize modules that its every start runs.
        distributions: what is installed in it.
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
    """Return the facts of a python; None when it does not run."""
    try:
        answer = subprocess.run(
            [path, "-I", "-c", PROBE],
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
            env=plain_environment(),
            cwd="/",
        )
        facts: dict[str, Any] = json.loads(answer.stdout)
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
        customize=tuple(Path(one) for one in facts["customize"]),
        distributions=facts["distributions"],
    )


def candidates(pythons: Iterable[str]) -> Iterator[str]:
    """Yield paths of the pythons a lock has files for, the middle versions first, then the plain name."""
    order = sorted(
        pythons,
        key=lambda short: (
            ("3.12", "3.11", "3.13", "3.10").index(short) if short in ("3.12", "3.11", "3.13", "3.10") else 9
        ),
    )
    for folder in ("/usr/bin", "/usr/local/bin"):
        for name in [*(f"python{short}" for short in order), "python3"]:
            if os.access(f"{folder}/{name}", os.X_OK):
                yield f"{folder}/{name}"


def find(wanted: str, pythons: tuple[str, ...], *, needs: str = "") -> Interpreter:
    """Return the python to build on.

    Args:
        wanted: path, or version as `3.12`, or empty for the first that fits.
        pythons: versions the lock has files for.
        needs: a distribution that it must bring, for `preinstalled`.

    Raises:
        OpsError: none fits; says where it looked.
    """
    if "/" in wanted:
        names = [wanted]
    elif wanted:
        names = [f"{folder}/python{wanted}" for folder in ("/usr/bin", "/usr/local/bin")]
    else:
        names = list(candidates(pythons))
        if needs:
            names = [
                name for name in ("/opt/conda/bin/python", "/venv/main/bin/python", *names) if os.access(name, os.X_OK)
            ]
    seen = []
    for name in names:
        found = probe(name)
        if found is None:
            seen.append(f"{name} does not run")
        elif found.short not in pythons:
            seen.append(f"{name} is {found.version}")
        elif needs and needs not in found.distributions:
            seen.append(f"{name} has no {needs}")
        else:
            return found
    asked = f"python_env_python={wanted}: " if wanted else ""
    raise OpsError(
        f"{asked}no Python {', '.join(pythons)} {'with ' + needs + ' ' if needs else ''}on this box "
        f"(looked at: {'; '.join(seen) or 'nothing in /usr/bin and /usr/local/bin'}).",
        remedy="install one of these versions, or set python_env_python to its path",
    )


def missing_packages(python: Interpreter) -> list[str]:
    """Return the Debian packages that a run would miss."""
    packages = [package for program, package in PROGRAMS if not shutil.which(program, path=SYSTEM_PATH)]
    if not python.headers:
        packages.append("python3-dev" if python.executable.name == _default_python() else f"python{python.short}-dev")
    return packages


def _default_python() -> str:
    return Path(os.path.realpath("/usr/bin/python3")).name


def root_prefix() -> list[str] | None:
    """Return what goes before a command to run it as root; None when this user cannot."""
    if os.geteuid() == 0:
        return []
    if shutil.which("sudo", path=SYSTEM_PATH):
        asked = subprocess.run(["sudo", "-n", "true"], capture_output=True, check=False, env=plain_environment())
        if asked.returncode == 0:
            return ["sudo", "-n"]
    return None


def require_installable(packages: list[str]) -> None:
    """Refuse when packages are missing and this user cannot install them; one message names them all.

    Raises:
        OpsError: with the command for root.
    """
    if packages and (root_prefix() is None or not shutil.which("apt-get", path=SYSTEM_PATH)):
        raise OpsError(
            f"Missing on this box: {', '.join(packages)} (looked in {SYSTEM_PATH}).",
            remedy=f"as root: apt-get install -y {' '.join(packages)}; or let Ansible become root "
            "(python_env_become=true)",
            facts={"missing_packages": packages},
        )


def install_packages(packages: list[str]) -> None:
    """Install Debian packages without a question.

    Raises:
        OpsError: apt-get failed; with its last lines.
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
                remedy="run it by hand as root; see the box's package sources",
            )
