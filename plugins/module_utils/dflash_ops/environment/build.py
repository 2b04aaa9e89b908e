"""Builds environments: aside, proved, recorded, then in place by one rename. Runs in a job.

`envs/<env_id>/` appears when everything in it is done and its env.json is written, so what is there is complete.
Healing builds another beside it and exchanges the two.
"""

from __future__ import annotations

import ctypes
import dataclasses
import os
import shutil
import time
from pathlib import Path
from typing import Any

from ..core import disk, files, tree_manifest, truncate
from ..core.errors import OpsError
from ..core.jobs import Progress, child_environment
from ..core.paths import Layout
from . import (
    build_record,
    interpreters,
    self_test,
    sources,
    staging,
    uv_binary,
    uv_command,
)
from .inspection import INHERITED, Spec, Status, inspect, refusal, summary
from .lockfile import Lock
from .uv_install import Uv

ENTRY = "environment.build:build"
NO_BYTECODE = "import sys; sys.dont_write_bytecode = True\n"
RENAME_EXCHANGE = 2
AT_FDCWD = -100


def build(arguments: dict[str, Any], progress: Progress) -> dict[str, Any]:
    """Job entry: make what `inspect` finds missing. Arguments are the module's."""
    layout = Layout.of(arguments["root"], arguments["workspace"])
    spec = Spec.of(arguments, layout)
    status = inspect(layout, spec)
    if status.missing_packages and spec.packages:
        progress.say(f"installing Debian packages: {', '.join(status.missing_packages)}")
        interpreters.install_packages(list(status.missing_packages))
        status = inspect(layout, spec)
    if status.state == "drifted" and not spec.heal:
        raise refusal(status)
    workdir = staging.building(layout, status.env_id)
    staging.clear(workdir, *staging.replaced(layout, status.env_id))
    if status.state == "complete":
        return summary(layout, status.env_id, changed=True)
    require_space(layout, spec)
    started = time.monotonic()
    uv = Uv(uv_binary.ensure(layout, spec.uv_lock, spec.sources), spec.cache, progress)
    record = make(workdir, spec, status, uv)
    record["seconds"] = round(time.monotonic() - started, 1)
    files.write_json(workdir / tree_manifest.RECORD_NAME, record)
    switch(workdir, status.path)
    staging.clear(*staging.replaced(layout, status.env_id))
    progress.say(
        f"environment {status.env_id} is complete: {len(record['packages'])} packages, "
        f"{record['bytes'] >> 20} MB, {record['seconds']} s"
    )
    return summary(layout, status.env_id, changed=True)


def require_possible(layout: Layout, spec: Spec) -> None:
    """Refuse what cannot be built before a wheel is pushed or a job started.

    Raises:
        OpsError: a folder of wheels is not there, or there is no space.
    """
    sources.wheel_names(spec.sources.folders)
    require_space(layout, spec)


def require_space(layout: Layout, spec: Spec) -> None:
    """Refuse before anything is written when the environment or uv's cache will not fit.

    Raises:
        OpsError: naming the mount.
    """
    size = spec.lock.megabytes << 20
    cached = 0 if any(spec.cache.glob("archive-v*/*")) else size
    needs = [(layout.envs, size, "The environment"), (spec.cache, cached, "uv's cache")]
    by_mount: dict[Path, int] = {}
    for path, wanted, what in needs:
        mount = disk.mount_of(path)
        by_mount[mount] = by_mount.get(mount, 0) + wanted
        disk.require_space(
            path, by_mount[mount], what=what, remedy="free some, or set dflash_root or python_env_cache_dir elsewhere"
        )


def make(aside: Path, spec: Spec, status: Status, uv: Uv) -> dict[str, Any]:
    """Build the environment in `aside` and return its record; what a cache spoiled is cleaned and tried once more."""
    for last_try in (False, True):
        install(aside, spec, status, uv)
        try:
            return prove(aside, spec, status, uv)
        except DamagedCache as damage:
            if last_try:
                raise
            uv.progress.say(f"damaged files in uv's cache, cleaning and building again: {damage.message}")
            uv.run(["cache", "clean", *damage.packages], what="cleaning the cache")
    raise AssertionError("unreachable")


class DamagedCache(OpsError):
    """Installed files differ from what their own wheels say, or are in none: uv's cache was edited or cut."""

    def __init__(self, problems: list[str], packages: list[str]) -> None:
        super().__init__(
            f"{len(problems)} installed file(s) are not what their wheels say: {truncate.join_items(problems, 10)}.",
            remedy="the disk or uv's cache is damaged: check the disk, remove python_env_cache_dir, run again",
        )
        self.packages = packages


def install(aside: Path, spec: Spec, status: Status, uv: Uv) -> None:
    """Fill `aside` with a new environment: relocatable, no pip, no file shared with anything."""
    shutil.rmtree(aside, ignore_errors=True)
    aside.parent.mkdir(parents=True, exist_ok=True)
    uv.run(
        ["venv", "--quiet", "--relocatable", "--no-project", "--python", str(status.python.path), str(aside)],
        what="making the environment",
    )
    lock = without_inherited(spec.lock) if spec.inherits else spec.lock
    fill(aside, spec, sources.plan(lock, spec.sources, python=status.python.short), uv)
    inherited = f"{status.python.purelib}\n" if spec.inherits else ""
    (site_packages(aside) / tree_manifest.BUILD_PTH).write_text(NO_BYTECODE + inherited)
    (aside / ".lock").unlink(missing_ok=True)


def fill(aside: Path, spec: Spec, parts: list[sources.Part], uv: Uv) -> None:
    """Let one call of uv fetch and install all pins, each package from its one place."""
    for part in parts:
        if part.pins:
            uv.progress.say(f"installing {names_in(part)} packages from {part.place}")
    request = uv_command.write(aside / ".request", parts, spec.sources.folders)
    uv.run(
        [
            "pip",
            "install",
            "--python",
            str(aside / "bin/python"),
            "--no-deps",
            "--require-hashes",
            "--python-platform",
            spec.lock.platform,
            "--only-binary",
            ":all:",
            *request.arguments,
        ],
        what="installing",
        environment=request.environment,
        watch=site_packages(aside),
        total=sum(names_in(part) for part in parts),
    )
    shutil.rmtree(aside / ".request")


def names_in(part: sources.Part) -> int:
    """Count the packages of a part; one may have a pin for each of several pythons."""
    return len({pin.name for pin in part.pins})


def without_inherited(lock: Lock) -> Lock:
    """Return the lock without what the image brings."""
    return dataclasses.replace(lock, pins=tuple(pin for pin in lock.pins if not pin.name.startswith(INHERITED)))


def site_packages(env: Path) -> Path:
    """Return the one site-packages folder of an environment."""
    return next((env / "lib").glob("python3*/site-packages"))


def prove(aside: Path, spec: Spec, status: Status, uv: Uv) -> dict[str, Any]:
    """Prove the environment in a new process, fingerprint it, and return its record without `seconds`.

    Raises:
        DamagedCache: files differ from their wheels.
        OpsError: the proof failed.
    """
    uv.progress.say("proving: new processes import every package" + (" and use every GPU" if spec.lock.cuda else ""))
    python = aside / "bin/python"
    stats = tree_manifest.scan(aside)  # before the proof adds bytecode
    halves = self_test.start(
        python, spec.lock, gpu=bool(spec.lock.cuda) and spec.self_test_gpus, environment=child_environment()
    )
    site = site_packages(aside)
    try:
        first = tree_manifest.manifest(aside, stats)
        prefix = f"{site.relative_to(aside).as_posix()}/"
        problems = tree_manifest.record_problems(site, first, prefix=prefix)
        if problems:
            raise DamagedCache(problems, damaged_packages(site, problems))
        facts = self_test.finish(halves, spec.lock, [aside, *[status.python.purelib] * spec.inherits])
    finally:
        for half in halves:
            half.kill()
            half.wait()
    everything = completed(aside, first)
    facts.pop("sys_path", None)
    facts["executable"] = facts["executable"].replace(str(aside), str(status.path))
    facts.get("torch", {}).update(file=facts.get("torch", {}).get("file", "").replace(str(aside), str(status.path)))
    for text in self_test.losses(facts, spec.lock):
        uv.progress.say(f"note: {text}")
    return {
        "env_id": status.env_id,
        "profile": spec.profile,
        "lock_sha256": spec.lock.sha256,
        "platform": f"{spec.lock.platform}",
        "built_at": time.time(),
        "uv": uv_binary.pinned(spec.uv_lock).version,
        "base": build_record.base_record(status.python),
        "proof": facts,
        "fingerprint": tree_manifest.fingerprint(everything),
        "bytes": sum(row[0] for row in everything.values()),
        "packages": build_record.package_rows(site, spec.lock, uv.cache),
        "inherited": build_record.inherited_record(status.python) if spec.inherits else {},
        "files": everything,
    }


def completed(aside: Path, first: tree_manifest.Manifest) -> tree_manifest.Manifest:
    """Return the manifest after the proof, which added bytecode; only new and changed files are hashed."""
    stats = tree_manifest.scan(aside)
    fresh = [
        name for name, stat in stats.items() if name not in first or first[name][:2] != [stat.st_size, stat.st_mtime_ns]
    ]
    hashes = tree_manifest.digests(aside, fresh)
    return {
        name: [stats[name].st_size, stats[name].st_mtime_ns, hashes.get(name) or first[name][2]]
        for name in sorted(stats)
    }


def damaged_packages(site: Path, problems: list[str]) -> list[str]:
    """Return the packages whose RECORD names one of the damaged files; none, which means all, when a file has none."""
    if any(problem.endswith(tree_manifest.UNLISTED) for problem in problems):
        return []
    text = "\n".join(problems)
    found = []
    for record in site.glob("*.dist-info/RECORD"):
        names = (row.split(",")[0] for row in record.read_text().splitlines())
        if any(f"/{name}" in text for name in names if name):
            found.append(record.parent.name.partition("-")[0].replace("_", "-"))
    return found


def switch(aside: Path, place: Path) -> None:
    """Put the new environment in its place in one step; one that stood there becomes `.replaced-…`."""
    if not place.exists():
        os.rename(aside, place)
    else:
        exchange(aside, place)
        os.rename(aside, place.with_name(f".replaced-{place.name}-{int(time.time())}"))
    files.fsync_folder(place.parent)


def exchange(one: Path, other: Path) -> None:
    """Exchange two folders in one step where the kernel can, else in two."""
    libc = ctypes.CDLL(None, use_errno=True)
    names = (os.fsencode(one), os.fsencode(other))
    if hasattr(libc, "renameat2") and not libc.renameat2(AT_FDCWD, names[0], AT_FDCWD, names[1], RENAME_EXCHANGE):
        return
    spare = other.with_name(f".old-{other.name}")
    shutil.rmtree(spare, ignore_errors=True)
    os.rename(other, spare)
    os.rename(one, other)
    os.rename(spare, one)
