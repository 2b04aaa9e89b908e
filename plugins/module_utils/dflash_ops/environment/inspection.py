"""State of environments on the box: requested specification, drift from the record. Read-only.

`envs/<env_id>/` is complete once it has an env.json, and is never changed afterwards (see build.py).
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
from .lockfile import Lockfile

PROFILES = ("cpu", "cu128", "preinstalled")
# Packages that the `preinstalled` profile takes from a rented image if torch and Triton have the pinned versions.
INHERITED = ("torch", "triton", "nvidia-", "cuda-")


@dataclasses.dataclass(frozen=True)
class Spec:
    """Specification of the requested environment.

    Args:
        profile: cpu, cu128 or preinstalled.
        lock: the complete lockfile.
        uv_lock: text of uv's own lockfile.
        python: path or version of the interpreter; empty for the first that fits.
        sources: indexes and folders of wheels.
        cache: uv's cache on the box.
        heal: rebuild a drifted environment.
        install_packages: install missing Debian packages if root access is available.
        self_test_gpus: compute on every GPU when the lockfile is for CUDA.
    """

    profile: str
    lock: Lockfile
    uv_lock: str
    python: str
    sources: sources.Sources
    cache: Path
    heal: bool
    install_packages: bool
    self_test_gpus: bool

    @classmethod
    def from_params(cls, params: Mapping[str, Any], layout: Layout) -> Spec:
        """Read module or job arguments.

        Raises:
            OpsError: the lockfile is incomplete, or the profile is unknown.
        """
        if params["profile"] not in PROFILES:
            raise OpsError(
                f"dflash_profile={params['profile']} is unknown.", remedy=f"choose one of {', '.join(PROFILES)}"
            )
        lock = lockfile.require_complete(params["lock"], name=params["lock_name"])
        folders = [at_home(folder) for folder in params["find_links"]]
        wheelhouse = layout.root / "wheelhouse"
        cache = at_home(params["cache_dir"]) if params["cache_dir"] else layout.uv_cache
        return cls(
            profile=params["profile"],
            lock=lock,
            uv_lock=params["uv_lock"],
            python=params["python"],
            sources=sources.Sources(
                dict(params["index_urls"]), tuple(folders + [wheelhouse] * wheelhouse.is_dir())
            ),
            cache=cache,
            heal=params["heal"],
            install_packages=params["install_packages"],
            self_test_gpus=params["self_test_gpus"],
        )

    @property
    def inherits(self) -> bool:
        """True if the environment takes torch from the image."""
        return self.profile == "preinstalled"


@dataclasses.dataclass(frozen=True)
class Status:
    """State of the requested environment on the box.

    Args:
        env_id: its name.
        path: its folder.
        state: complete, missing or drifted.
        drift: differences from the record.
        missing_packages: Debian packages that a run needs and the box lacks.
        python: the base interpreter.
        missing_fast_paths: one sentence for each optional kernel package that is missing.
        packages: number of installed packages.
        megabytes: size on disk.
    """

    env_id: str
    path: Path
    state: str
    drift: tuple[Drift, ...]
    missing_packages: tuple[str, ...]
    python: Interpreter
    missing_fast_paths: tuple[str, ...]
    packages: int
    megabytes: int

    @property
    def needs_work(self) -> bool:
        """True if something has to be built or installed."""
        return self.state != "complete" or bool(self.missing_packages)


def environment_id(spec: Spec, python: Interpreter) -> str:
    """Return the environment's name: profile, Python version, and a hash over lockfile, Python x.y and platform."""
    parts = [spec.lock.sha256, python.short, python.machine]
    if spec.inherits:
        versions = inherited_versions(python)
        parts += [str(python.path), *sorted(f"{name}=={version}" for name, version in versions.items())]
    digest = hashlib.sha256("\n".join(parts).encode()).hexdigest()[:12]
    return f"{spec.profile}-py{python.short.replace('.', '')}-{digest}"


def inherited_versions(python: Interpreter) -> dict[str, str]:
    """Return name and version of the image's packages that `preinstalled` takes from it."""
    return {name: version for name, version in python.distributions.items() if name.startswith(INHERITED)}


def may_match(listed: str, pinned: str) -> bool:
    """Return True if a listed version can be the pinned one; metadata may lack the local part (`+cu128`)."""
    return not pinned or listed == pinned or ("+" not in listed and listed == pinned.partition("+")[0])


def find_python(spec: Spec) -> Interpreter:
    """Return the base interpreter; for `preinstalled` one that has the pinned torch.

    Raises:
        OpsError: no interpreter fits, or the image's versions differ from the lockfile.
    """
    python = interpreters.find(spec.python, spec.lock.pythons, required_package="torch" if spec.inherits else "")
    if spec.inherits:
        wrong = [
            f"{name} is {python.distributions.get(name) or 'missing'}, the lockfile pins {spec.lock.version_of(name)}"
            for name in ("torch", "triton")
            if not may_match(python.distributions.get(name, ""), spec.lock.version_of(name))
        ]
        if wrong:
            raise OpsError(
                f"The image's {python.path} does not fit: {'; '.join(wrong)}.",
                remedy="rent an image with the pinned versions, or use dflash_profile=cu128",
            )
    return python


def inspect(layout: Layout, spec: Spec, *, full: bool = False) -> Status:
    """Return the state of the requested environment; hash every file if `full`."""
    disk.require_not_file(layout.root, "dflash_root")
    python = find_python(spec)
    env_id = environment_id(spec, python)
    path = layout.env(env_id)
    record = read_record(path)
    drift = tuple(compare_with_record(path, record, full=full, python=python)) if record else ()
    if record is None:
        state = "missing"
    else:
        state = "drifted" if drift else "complete"
    packages = tuple(interpreters.missing_packages(python))
    return Status(
        env_id=env_id,
        path=path,
        state=state,
        drift=drift,
        missing_packages=packages,
        python=python,
        missing_fast_paths=tuple(self_test.missing_fast_paths(record["self_test"], spec.lock)) if record else (),
        packages=len(record["packages"]) if record else 0,
        megabytes=record["bytes"] >> 20 if record else 0,
    )


def read_record(path: Path) -> dict[str, Any] | None:
    """Return env.json of an environment, or None if it is not complete."""
    record = files.read_json(path / tree_manifest.RECORD_NAME)
    return record if isinstance(record, dict) and {"files", "self_test"} <= record.keys() else None


def find_drift(layout: Layout, env_id: str, *, full: bool = False) -> list[Drift]:
    """Return the differences between an environment and its record: fast before a launch, `full` for verify.yml.

    Raises:
        OpsError: the box has no complete environment of this name.
    """
    record = read_record(layout.env(env_id))
    if record is None:
        raise OpsError(
            f"The environment {env_id} is not on this box.", remedy="run deploy.yml, or relaunch.yml --tags env"
        )
    return compare_with_record(layout.env(env_id), record, full=full)


def compare_with_record(
    path: Path, record: dict[str, Any], *, full: bool, python: Interpreter | None = None
) -> list[Drift]:
    """Compare an environment, its base Python and its inherited packages with the record.

    Args:
        path: the environment.
        record: its env.json.
        full: hash every file.
        python: the base Python if it was already probed.
    """
    drift = tree_manifest.compare(path, record["files"], full=full)
    base = record["base"]
    if python is None or str(python.path) != base["requested"]:
        python = interpreters.probe(base["requested"])
    if python is None:
        return [*drift, Drift("base", base["requested"], "this Python is missing; the environment cannot start")]
    if python.version != base["version"]:
        drift.append(Drift("base", base["executable"], f"was {base['version']}, is {python.version}"))
    now = tree_manifest.base_digests(python.customize)
    for name in sorted(now.keys() | base["customize"].keys()):
        if now.get(name) != base["customize"].get(name):
            drift.append(Drift("startup", name, "runs at every start of this Python and changed after the build"))
    return drift + inherited_drift(python, record.get("inherited") or {}, full=full)


def inherited_drift(python: Interpreter, recorded: dict[str, Any], *, full: bool) -> list[Drift]:
    """Compare the image's packages with the recorded ones."""
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
    """Return [size, mtime in ns] by file of the named packages of the image, from their RECORD files."""
    rows = {}
    for folder in python.purelib.glob("*.dist-info"):
        if folder.name.partition("-")[0].replace("_", "-").lower() in names:
            for line in (folder / "RECORD").read_text().splitlines():
                path = python.purelib / line.split(",")[0]
                if path.is_file() and path.suffix != ".pyc":
                    stat = path.stat()
                    rows[os.path.normpath(line.split(",")[0])] = [stat.st_size, stat.st_mtime_ns]
    return rows


def as_diff(status: Status, spec: Spec) -> dict[str, str]:
    """Return Ansible's diff of the planned change."""
    before = {"complete": f"{status.env_id} complete\n", "missing": "", "drifted": f"{status.env_id} drifted\n"}[
        status.state
    ]
    before += "".join(f"  {difference}\n" for difference in tree_manifest.fold(list(status.drift)))
    after = f"{status.env_id} complete\n"
    if status.state == "missing":
        lock = f"lockfile {spec.lock.sha256[:12]}"
        after += f"  {len(spec.lock.pins)} pins of {spec.profile}, {lock}, {status.python.path}\n"
    after += "".join(f"  Debian package {name}\n" for name in status.missing_packages)
    return {"before": before, "after": after}


def drift_error(status: Status) -> OpsError:
    """Return the error that lists an environment's drift and the command that heals it."""
    lines = [str(difference) for difference in tree_manifest.fold(list(status.drift))]
    return OpsError(
        f"The environment {status.env_id} differs from its record in {len(status.drift)} place(s): "
        f"{truncate.join_items(lines, 30)}.",
        remedy="-e python_env_heal=true rebuilds it and replaces this copy",
        facts={"drift": [dataclasses.asdict(difference) for difference in status.drift[:500]]},
    )


def summary(layout: Layout, env_id: str, *, changed: bool) -> dict[str, Any]:
    """Return the module's result for a complete environment."""
    record = read_record(layout.env(env_id)) or {}
    return {
        "changed": changed,
        "env_id": env_id,
        "folder": str(layout.env(env_id)),
        "state": "complete",
        "python": str(layout.env(env_id) / "bin/python"),
        "packages": len(record.get("packages", [])),
        "megabytes": record.get("bytes", 0) >> 20,
        "fingerprint": record.get("fingerprint", ""),
        "torch": (record.get("self_test") or {}).get("torch", {}),
    }


def processes_using(folder: Path) -> list[int]:
    """Return the ids of processes that have files of a folder mapped into memory."""
    pids = []
    for pid in processes.all_pids():
        try:
            if f"{folder}/" in (processes.PROC / str(pid) / "maps").read_text(errors="replace"):
                pids.append(pid)
        except OSError:
            continue
    return pids
