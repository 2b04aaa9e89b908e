"""Environments: what is asked for, how it stands on the box, and what differs from its record. Changes nothing.

`envs/<env_id>/` is complete when it has its env.json. It is never changed afterwards: see build.py.
"""

from __future__ import annotations

import dataclasses
import hashlib
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from ..core import disk, files, processes, tree_manifest, truncate
from ..core.errors import OpsError
from ..core.paths import Layout, at_home
from ..core.tree_manifest import Drift
from . import interpreters, lockfile, self_test, sources
from .interpreters import Interpreter
from .lockfile import Lock

PROFILES = ("cpu", "cu128", "preinstalled")
# What a rented image brings and the `preinstalled` profile takes from it, when the versions are the pinned ones.
INHERITED = ("torch", "triton", "nvidia-", "cuda-")


@dataclasses.dataclass(frozen=True)
class Spec:
    """What is asked for.

    Args:
        profile: cpu, cu128 or preinstalled.
        lock: the complete lock.
        uv_lock: text of uv's own lock.
        python: path or version of the interpreter; empty for the first that fits.
        sources: where files come from.
        cache: uv's cache on the box.
        heal: rebuild a drifted environment.
        packages: install missing Debian packages where root can be had.
        self_test_gpus: compute on every GPU when the lock is for CUDA.
    """

    profile: str
    lock: Lock
    uv_lock: str
    python: str
    sources: sources.Sources
    cache: Path
    heal: bool
    packages: bool
    self_test_gpus: bool

    @classmethod
    def of(cls, want: Mapping[str, Any], layout: Layout) -> Spec:
        """Read module or job arguments.

        Raises:
            OpsError: the lock is not complete, or a word is unknown.
        """
        if want["profile"] not in PROFILES:
            raise OpsError(
                f"dflash_profile={want['profile']} is unknown.", remedy=f"choose one of {', '.join(PROFILES)}"
            )
        lock = lockfile.require_complete(want["lock"], name=want["lock_name"])
        folders = [at_home(one) for one in want["find_links"]]
        wheelhouse = layout.root / "wheelhouse"
        cache = at_home(want["cache_dir"]) if want["cache_dir"] else layout.uv_cache
        return cls(
            profile=want["profile"],
            lock=lock,
            uv_lock=want["uv_lock"],
            python=want["python"],
            sources=sources.Sources(dict(want["index_urls"]), tuple(folders + [wheelhouse] * wheelhouse.is_dir())),
            cache=cache,
            heal=want["heal"],
            packages=want["packages"],
            self_test_gpus=want["self_test_gpus"],
        )

    @property
    def inherits(self) -> bool:
        return self.profile == "preinstalled"


@dataclasses.dataclass(frozen=True)
class Status:
    """How the asked environment stands on the box.

    Args:
        env_id: its name.
        path: its folder.
        state: complete, missing or drifted.
        drift: what differs from the record.
        missing_packages: Debian packages that a run would miss.
        python: the interpreter it is built on.
        losses: what is slower than it could be, in words.
        packages: how many are installed.
        megabytes: what it takes on the disk.
    """

    env_id: str
    path: Path
    state: str
    drift: tuple[Drift, ...]
    missing_packages: tuple[str, ...]
    python: Interpreter
    losses: tuple[str, ...]
    packages: int
    megabytes: int

    @property
    def needs_work(self) -> bool:
        return self.state != "complete" or bool(self.missing_packages)


def name_of(spec: Spec, python: Interpreter) -> str:
    """Return env_id: a hash over the lock's bytes, python x.y and platform, readable in front."""
    parts = [spec.lock.sha256, python.short, python.machine]
    if spec.inherits:
        parts += [str(python.path), *sorted(f"{name}=={version}" for name, version in inherited_of(python).items())]
    digest = hashlib.sha256("\n".join(parts).encode()).hexdigest()[:12]
    return f"{spec.profile}-py{python.short.replace('.', '')}-{digest}"


def inherited_of(python: Interpreter) -> dict[str, str]:
    """Return what an image brings of the packages that `preinstalled` takes from it."""
    return {name: version for name, version in python.distributions.items() if name.startswith(INHERITED)}


def may_be(listed: str, pinned: str) -> bool:
    """Tell whether a listed version may be the pinned one: a list may lack the local part, which the proof asks for."""
    return not pinned or listed == pinned or ("+" not in listed and listed == pinned.partition("+")[0])


def find_python(spec: Spec) -> Interpreter:
    """Return the interpreter; for `preinstalled` one whose torch is the pinned one.

    Raises:
        OpsError: none fits, or the image's versions are not the lock's.
    """
    python = interpreters.find(spec.python, spec.lock.pythons, needs="torch" if spec.inherits else "")
    if spec.inherits:
        wrong = [
            f"{name} is {python.distributions.get(name) or 'missing'}, the lock pins {spec.lock.version_of(name)}"
            for name in ("torch", "triton")
            if not may_be(python.distributions.get(name, ""), spec.lock.version_of(name))
        ]
        if wrong:
            raise OpsError(
                f"The image's {python.path} does not fit: {'; '.join(wrong)}.",
                remedy="rent an image with the pinned versions, or use dflash_profile=cu128",
            )
    return python


def inspect(layout: Layout, spec: Spec, *, full: bool = False) -> Status:
    """Say how the environment stands. Changes nothing."""
    disk.require_not_file(layout.root, "dflash_root")
    python = find_python(spec)
    env_id = name_of(spec, python)
    path = layout.env(env_id)
    record = read(path)
    found = tuple(drift_of(path, record, full=full, known=python)) if record else ()
    if record is None:
        state = "missing"
    else:
        state = "drifted" if found else "complete"
    packages = tuple(interpreters.missing_packages(python))
    return Status(
        env_id=env_id,
        path=path,
        state=state,
        drift=found,
        missing_packages=packages,
        python=python,
        losses=tuple(self_test.losses(record["proof"], spec.lock)) if record else (),
        packages=len(record["packages"]) if record else 0,
        megabytes=record["bytes"] >> 20 if record else 0,
    )


def read(path: Path) -> dict[str, Any] | None:
    """Return env.json of an environment; None when it is not complete."""
    record = files.read_json(path / tree_manifest.RECORD_NAME)
    return record if isinstance(record, dict) and "files" in record else None


def check(layout: Layout, env_id: str, *, full: bool = False) -> list[Drift]:
    """Return what differs between an environment and its record; for every launch (fast) and `verify` (full).

    Raises:
        OpsError: there is no such complete environment.
    """
    record = read(layout.env(env_id))
    if record is None:
        raise OpsError(
            f"The environment {env_id} is not on this box.", remedy="run deploy.yml, or relaunch.yml --tags env"
        )
    return drift_of(layout.env(env_id), record, full=full)


def drift_of(path: Path, record: dict[str, Any], *, full: bool, known: Interpreter | None = None) -> list[Drift]:
    """Compare an environment, its base python (asked again unless `known`) and what it inherits with the record."""
    drift = tree_manifest.compare(path, record["files"], full=full)
    base = record["base"]
    same = known is not None and str(known.path) == base["asked"]
    python = known if same else interpreters.probe(base["asked"])
    if python is None:
        return [*drift, Drift("base", base["asked"], "this python is gone; the environment cannot start")]
    if python.version != base["version"]:
        drift.append(Drift("base", base["executable"], f"was {base['version']}, is {python.version}"))
    now = tree_manifest.base_digests(python.customize)
    for name in sorted(now.keys() | base["customize"].keys()):
        if now.get(name) != base["customize"].get(name):
            drift.append(Drift("startup", name, "is run by every start of this python, and was not so at the build"))
    return drift + inherited_drift(python, record.get("inherited") or {}, full=full)


def inherited_drift(python: Interpreter, recorded: dict[str, Any], *, full: bool) -> list[Drift]:
    """Compare the image's packages with what was inherited."""
    if not recorded:
        return []
    drift = [
        Drift("package", f"{name}=={version}", f"the image has {python.distributions.get(name) or 'none'}")
        for name, version in recorded["distributions"].items()
        if python.distributions.get(name) != version
    ]
    drift += [
        Drift("package", f"{name}=={version}", "is new in the image")
        for name, version in python.distributions.items()
        if name not in recorded["distributions"]
    ]
    now = inherited_files(python, recorded["packages"])
    then = recorded["files"]
    if full:
        hashes = tree_manifest.digests(python.purelib, (name for name in now if name in then))
        drift += [
            Drift("edited", f"{python.purelib}/{name}", "of the image")
            for name in hashes
            if hashes[name] != then[name][2]
        ]
    else:
        drift += [
            Drift("edited", f"{python.purelib}/{name}", "of the image")
            for name, row in now.items()
            if name in then and row != then[name][:2]
        ]
    return drift + [Drift("removed", f"{python.purelib}/{name}", "of the image") for name in then.keys() - now.keys()]


def inherited_files(python: Interpreter, names: Iterable[str]) -> dict[str, list[int]]:
    """Return file to [size, mtime in ns] of the image's packages, from their RECORD files."""
    found = {}
    for folder in python.purelib.glob("*.dist-info"):
        if folder.name.partition("-")[0].replace("_", "-").lower() in names:
            for row in (folder / "RECORD").read_text().splitlines():
                path = python.purelib / row.split(",")[0]
                if path.is_file() and path.suffix != ".pyc":
                    stat = path.stat()
                    found[os.path.normpath(row.split(",")[0])] = [stat.st_size, stat.st_mtime_ns]
    return found


def as_diff(status: Status, spec: Spec) -> dict[str, str]:
    """Return Ansible's before and after of what would be done."""
    before = {"complete": f"{status.env_id} complete\n", "missing": "", "drifted": f"{status.env_id} drifted\n"}[
        status.state
    ]
    before += "".join(f"  {one}\n" for one in tree_manifest.fold(list(status.drift)))
    after = f"{status.env_id} complete\n"
    if status.state == "missing":
        after += f"  {len(spec.lock.pins)} pins of {spec.profile}, lock {spec.lock.sha256[:12]}, {status.python.path}\n"
    after += "".join(f"  Debian package {name}\n" for name in status.missing_packages)
    return {"before": before, "after": after}


def refusal(status: Status) -> OpsError:
    """Say that an environment drifted, file by file, and the one command that heals it."""
    lines = [str(one) for one in tree_manifest.fold(list(status.drift))]
    return OpsError(
        f"The environment {status.env_id} is not as it was built: {len(status.drift)} difference(s): "
        f"{truncate.join_items(lines, 30)}.",
        remedy="-e python_env_heal=true builds it again beside this one and switches",
        facts={"drift": [dataclasses.asdict(one) for one in status.drift[:500]]},
    )


def summary(layout: Layout, env_id: str, *, changed: bool) -> dict[str, Any]:
    """Return what the module reports of a complete environment."""
    record = read(layout.env(env_id)) or {}
    return {
        "changed": changed,
        "env_id": env_id,
        "folder": str(layout.env(env_id)),
        "state": "complete",
        "python": str(layout.env(env_id) / "bin/python"),
        "packages": len(record.get("packages", [])),
        "megabytes": record.get("bytes", 0) >> 20,
        "fingerprint": record.get("fingerprint", ""),
        "torch": (record.get("proof") or {}).get("torch", {}),
    }


def users_of(folder: Path) -> list[int]:
    """Return the processes that have files of a folder open in memory."""
    found = []
    for pid in processes.all_pids():
        try:
            if f"{folder}/" in (processes.PROC / str(pid) / "maps").read_text(errors="replace"):
                found.append(pid)
        except OSError:
            continue
    return found
