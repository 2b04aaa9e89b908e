"""Build environments in a job on the box.

An environment is built in a staging directory, self-tested and recorded, then renamed to `envs/<env_id>`. Its env.json
is written last, so a folder with env.json is complete. A heal builds a second copy and exchanges the two.
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
from .inspection import INHERITED, Spec, Status, drift_error, inspect, summary
from .lockfile import Lockfile
from .uv_install import Uv

ENTRY = "environment.build:build"
NO_BYTECODE = "import sys; sys.dont_write_bytecode = True\n"
RENAME_EXCHANGE = 2
AT_FDCWD = -100


def build(arguments: dict[str, Any], progress: Progress) -> dict[str, Any]:
    """Run the build job: install and build everything that `inspect` reports missing.

    Args:
        arguments: the module's arguments.
        progress: receives the progress lines.

    Raises:
        OpsError: the environment drifted and `heal` is off, a source or space is missing, or the self-test failed.
    """
    layout = Layout.of(arguments["root"], arguments["workspace"])
    spec = Spec.from_params(arguments, layout)
    status = inspect(layout, spec)
    if status.missing_packages and spec.install_packages:
        progress.say(f"installing Debian packages: {', '.join(status.missing_packages)}")
        interpreters.install_packages(list(status.missing_packages))
        status = inspect(layout, spec)
    if status.state == "drifted" and not spec.heal:
        raise drift_error(status)
    workdir = staging.build_folder(layout, status.env_id)
    staging.remove_unused(workdir, *staging.replaced_folders(layout, status.env_id))
    if status.state == "complete":
        return summary(layout, status.env_id, changed=True)
    require_space(layout, spec)
    started = time.monotonic()
    uv = Uv(uv_binary.ensure(layout, spec.uv_lock, spec.sources), spec.cache, progress)
    record = build_and_test(workdir, spec, status, uv)
    record["seconds"] = round(time.monotonic() - started, 1)
    files.write_json(workdir / tree_manifest.RECORD_NAME, record)
    activate(workdir, status.path)
    staging.remove_unused(*staging.replaced_folders(layout, status.env_id))
    progress.say(
        f"environment {status.env_id} is complete: {len(record['packages'])} packages, "
        f"{record['bytes'] >> 20} MB, {record['seconds']} s"
    )
    return summary(layout, status.env_id, changed=True)


def require_sources_and_space(layout: Layout, spec: Spec) -> None:
    """Check wheel folders and free space before a wheel is copied or a job starts.

    Raises:
        OpsError: a folder of wheels is missing, or the disk is too small.
    """
    sources.wheel_names(spec.sources.folders)
    require_space(layout, spec)


def require_space(layout: Layout, spec: Spec) -> None:
    """Check that the environment and uv's cache fit on their mounts.

    Raises:
        OpsError: a mount has too little space; the message names it.
    """
    size = spec.lock.megabytes << 20
    cache_size = 0 if any(spec.cache.glob("archive-v*/*")) else size
    needs = [(layout.envs, size, "The environment"), (spec.cache, cache_size, "uv's cache")]
    by_mount: dict[Path, int] = {}
    for path, needed, what in needs:
        mount = disk.mount_of(path)
        by_mount[mount] = by_mount.get(mount, 0) + needed
        disk.require_space(
            path,
            by_mount[mount],
            what=what,
            remedy="free space, or move dflash_root or python_env_cache_dir to another disk",
        )


def build_and_test(workdir: Path, spec: Spec, status: Status, uv: Uv) -> dict[str, Any]:
    """Build and test the environment in `workdir` and return its record; clean a damaged uv cache and retry once."""
    for last_attempt in (False, True):
        install(workdir, spec, status, uv)
        try:
            return test_and_record(workdir, spec, status, uv)
        except DamagedCache as damage:
            if last_attempt:
                raise
            uv.progress.say(f"damaged files in uv's cache; cleaning it and building again: {damage.message}")
            uv.run(["cache", "clean", *damage.packages], what="cleaning the cache")
    raise AssertionError("unreachable")


class DamagedCache(OpsError):
    """Installed files differ from the RECORD of their wheels: uv's cache was edited or truncated."""

    def __init__(self, problems: list[str], packages: list[str]) -> None:
        super().__init__(
            f"{len(problems)} installed file(s) differ from their wheels: {truncate.join_items(problems, 10)}.",
            remedy="the disk or uv's cache is damaged: check the disk, remove python_env_cache_dir, run again",
        )
        self.packages = packages


def install(workdir: Path, spec: Spec, status: Status, uv: Uv) -> None:
    """Create a relocatable environment without pip in `workdir` and install the lockfile's packages."""
    shutil.rmtree(workdir, ignore_errors=True)
    workdir.parent.mkdir(parents=True, exist_ok=True)
    uv.run(
        ["venv", "--quiet", "--relocatable", "--no-project", "--python", str(status.python.path), str(workdir)],
        what="creating the environment",
    )
    lock = without_inherited(spec.lock) if spec.inherits else spec.lock
    install_pins(workdir, spec, sources.plan(lock, spec.sources, python=status.python.short), uv)
    inherited = f"{status.python.purelib}\n" if spec.inherits else ""
    (site_packages(workdir) / tree_manifest.BUILD_PTH).write_text(NO_BYTECODE + inherited)
    (workdir / ".lock").unlink(missing_ok=True)


def install_pins(workdir: Path, spec: Spec, groups: list[sources.SourceGroup], uv: Uv) -> None:
    """Install all pins with one call of uv; each package has exactly one source."""
    for group in groups:
        if group.pins:
            uv.progress.say(f"installing {package_count(group)} packages from {group.description}")
    request = uv_command.write(workdir / ".request", groups, spec.sources.folders)
    uv.run(
        [
            "pip",
            "install",
            "--python",
            str(workdir / "bin/python"),
            "--no-deps",
            "--require-hashes",
            "--python-platform",
            spec.lock.platform,
            "--only-binary",
            ":all:",
            *request.arguments,
        ],
        what="installing",
        env_vars=request.env_vars,
        watch=site_packages(workdir),
        total=sum(package_count(group) for group in groups),
    )
    shutil.rmtree(workdir / ".request")


def package_count(group: sources.SourceGroup) -> int:
    """Count the packages of a group; a package may have one pin per Python version."""
    return len({pin.name for pin in group.pins})


def without_inherited(lock: Lockfile) -> Lockfile:
    """Return the lockfile without the packages that the image provides."""
    return dataclasses.replace(lock, pins=tuple(pin for pin in lock.pins if not pin.name.startswith(INHERITED)))


def site_packages(env: Path) -> Path:
    """Return the site-packages folder of an environment."""
    return next((env / "lib").glob("python3*/site-packages"))


def test_and_record(workdir: Path, spec: Spec, status: Status, uv: Uv) -> dict[str, Any]:
    """Self-test the environment in new processes, hash its files, and return its record without `seconds`.

    Raises:
        DamagedCache: files differ from their wheels.
        OpsError: the self-test failed.
    """
    with_gpus = bool(spec.lock.cuda) and spec.self_test_gpus
    uv.progress.say(f"self-test: importing every package{' and computing on every GPU' if with_gpus else ''}")
    stats = tree_manifest.scan(workdir)  # before the self-test writes bytecode
    test_processes = self_test.start(workdir / "bin/python", spec.lock, gpu=with_gpus, env_vars=child_environment())
    site = site_packages(workdir)
    try:
        installed = tree_manifest.manifest(workdir, stats)
        prefix = f"{site.relative_to(workdir).as_posix()}/"
        problems = tree_manifest.record_problems(site, installed, prefix=prefix)
        if problems:
            raise DamagedCache(problems, damaged_packages(site, problems))
        facts = self_test.finish(test_processes, spec.lock, [workdir, *[status.python.purelib] * spec.inherits])
    finally:
        for process in test_processes:
            process.kill()
            process.wait()
    manifest = manifest_with_bytecode(workdir, installed)
    facts.pop("sys_path", None)
    facts["executable"] = facts["executable"].replace(str(workdir), str(status.path))
    facts.get("torch", {}).update(file=facts.get("torch", {}).get("file", "").replace(str(workdir), str(status.path)))
    for text in self_test.missing_fast_paths(facts, spec.lock):
        uv.progress.say(f"note: {text}")
    return {
        "env_id": status.env_id,
        "profile": spec.profile,
        "lock_sha256": spec.lock.sha256,
        "platform": f"{spec.lock.platform}",
        "built_at": time.time(),
        "uv": uv_binary.uv_pin(spec.uv_lock).version,
        "base": build_record.base_record(status.python),
        "self_test": facts,
        "fingerprint": tree_manifest.fingerprint(manifest),
        "bytes": sum(row[0] for row in manifest.values()),
        "packages": build_record.package_rows(site, spec.lock, uv.cache),
        "inherited": build_record.inherited_record(status.python) if spec.inherits else {},
        "files": manifest,
    }


def manifest_with_bytecode(workdir: Path, installed: tree_manifest.Manifest) -> tree_manifest.Manifest:
    """Extend the manifest by the bytecode that the self-test wrote; hash only new and changed files."""
    stats = tree_manifest.scan(workdir)
    changed = [
        name
        for name, stat in stats.items()
        if name not in installed or installed[name][:2] != [stat.st_size, stat.st_mtime_ns]
    ]
    hashes = tree_manifest.digests(workdir, changed)
    return {
        name: [stats[name].st_size, stats[name].st_mtime_ns, hashes.get(name) or installed[name][2]]
        for name in sorted(stats)
    }


def damaged_packages(site: Path, problems: list[str]) -> list[str]:
    """Return the packages with damaged files; an empty list means all, when a file belongs to no package."""
    if any(problem.endswith(tree_manifest.UNLISTED) for problem in problems):
        return []
    text = "\n".join(problems)
    packages = []
    for record in site.glob("*.dist-info/RECORD"):
        names = (row.split(",")[0] for row in record.read_text().splitlines())
        if any(f"/{name}" in text for name in names if name):
            packages.append(record.parent.name.partition("-")[0].replace("_", "-"))
    return packages


def activate(workdir: Path, target: Path) -> None:
    """Move the new environment to `target` atomically; an existing one is renamed to `.replaced-…`."""
    if not target.exists():
        os.rename(workdir, target)
    else:
        exchange(workdir, target)
        os.rename(workdir, target.with_name(f".replaced-{target.name}-{int(time.time())}"))
    files.fsync_folder(target.parent)


def exchange(first: Path, second: Path) -> None:
    """Exchange two folders atomically with renameat2, or with three renames where the kernel lacks it."""
    libc = ctypes.CDLL(None, use_errno=True)
    names = (os.fsencode(first), os.fsencode(second))
    if hasattr(libc, "renameat2") and not libc.renameat2(AT_FDCWD, names[0], AT_FDCWD, names[1], RENAME_EXCHANGE):
        return
    temporary = second.with_name(f".old-{second.name}")
    shutil.rmtree(temporary, ignore_errors=True)
    os.rename(second, temporary)
    os.rename(first, second)
    os.rename(temporary, first)
