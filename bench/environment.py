"""Our environment build against bare `uv pip sync` of the same lock, in one run on one machine.

    .venv/bin/python bench/environment.py --json environment.json
    .venv/bin/python bench/environment.py --skip-cold --rounds 5

Cold: an empty cache of uv, so everything is fetched. Warm: the cache is filled. No-op: the environment is there, and is
compared with its record. Ours has everything in it that a deploy does on the box: copying, the proof in new processes,
bytecode, hashes of all files, the record. Both copy files (`--link-mode copy`): a hard link would let an edit in one
environment change the cache and every environment built later.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

REPO = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(REPO / "plugins/module_utils"))

from dflash_ops import (  # noqa: E402
    cache_fill,
    environment,
    environment_build,
    fingerprint,
    installer,
    interpreters,
    sources,
    uv_tool,
)
from dflash_ops.jobs import Progress  # noqa: E402
from dflash_ops.paths import Layout  # noqa: E402

UV = Path(sys.executable).parent / "uv"
LOCK = REPO / "trainer/locks/cpu.lock"


def timed(work: Callable[[], Any]) -> float:
    """Return the seconds of one call."""
    start = time.monotonic()
    work()
    return time.monotonic() - start


def bare(top: Path, cache: Path, python: str, *, link_mode: str) -> None:
    """Make a virtual environment and let uv fill it from the lock, and nothing else."""
    target = top / "bare"
    settings = {**installer.uv_environment(cache), "UV_LINK_MODE": link_mode}
    subprocess.run([UV, "venv", "-q", "--no-project", "--python", python, target], check=True, env=settings)
    folders = [word for folder in sources.folders_of_this_machine() for word in ("--find-links", str(folder))]
    subprocess.run(
        [
            UV,
            "pip",
            "sync",
            "-q",
            "--python",
            target / "bin/python",
            "--require-hashes",
            "--only-binary",
            ":all:",
            *folders,
            LOCK,
        ],
        check=True,
        env=settings,
    )


def arguments(top: Path, cache: Path) -> dict[str, Any]:
    """Return what the role gives the module."""
    return {
        "root": str(top / "ours"),
        "workspace": "",
        "profile": "cpu",
        "lock": LOCK.read_text(),
        "lock_name": LOCK.name,
        "uv_lock": (LOCK.parent / "uv.lock").read_text(),
        "python": "",
        "index_urls": {},
        "heal": False,
        "find_links": [str(folder) for folder in sources.folders_of_this_machine()],
        "cache_dir": str(cache),
        "packages": False,
        "prove_gpus": False,
    }


def ours(want: dict[str, Any]) -> None:
    """Build as the job does, on a box that has uv already."""
    layout = Layout.of(want["root"])
    program = uv_tool.place(layout, uv_tool.pinned(want["uv_lock"]))
    program.parent.mkdir(parents=True)
    shutil.copy(UV, program)
    layout.jobs.mkdir()
    with (layout.jobs / "log").open("w") as log:
        held = os.dup(1)
        os.dup2(log.fileno(), 1)
        try:
            environment_build.build(want, Progress(layout.jobs))
        finally:
            os.dup2(held, 1)
            os.close(held)


def wait_for_cache(want: dict[str, Any]) -> None:
    """Wait until the job that fills uv's cache after a first build has ended."""
    layout = Layout.of(want["root"])
    cache_fill.wait(layout, Progress(layout.jobs))


def forget(*folders: Path) -> None:
    """Remove folders and let the disk come to rest, so that nobody pays for what another case wrote."""
    for folder in folders:
        shutil.rmtree(folder, ignore_errors=True)
    os.sync()


def no_op(want: dict[str, Any], *, full: bool = False) -> None:
    layout = Layout.of(want["root"])
    status = environment.inspect(layout, environment.Spec.of(want, layout), full=full)
    assert status.state == "complete", status


def measure(top: Path, *, rounds: int, cold: bool) -> dict[str, Any]:
    """Return the seconds of each case, ours and bare in turn."""
    lock = environment.lockfile.parse(LOCK.read_text())
    python = interpreters.find("", lock.pythons)
    times: dict[str, list[float]] = {}

    def note(name: str, work: Callable[[], Any]) -> None:
        times.setdefault(name, []).append(timed(work))
        print(f"{name}: {times[name][-1]:.2f} s", flush=True)

    cache, want = top / "cache", arguments(top, top / "cache")
    if cold:
        for _ in range(rounds):
            forget(top / "bare", top / "ours", cache)
            note("cold bare", lambda: bare(top, cache, str(python.path), link_mode="copy"))
            forget(top / "bare", cache)
            note("cold ours", lambda: ours(want))
            note("cold ours, cache filled afterwards", lambda: wait_for_cache(want))
    else:
        bare(top, cache, str(python.path), link_mode="copy")
        ours(want)  # keeps the bytecode
    for _ in range(rounds):
        forget(top / "bare", top / "ours")
        note("warm bare, copied", lambda: bare(top, cache, str(python.path), link_mode="copy"))
        forget(top / "bare")
        note("warm bare, hard links", lambda: bare(top, cache, str(python.path), link_mode="hardlink"))
        forget(top / "bare")
        note("warm ours", lambda: ours(want))
    for _ in range(rounds):
        note("no-op", lambda: no_op(want))
        note("no-op, every file hashed", lambda: no_op(want, full=True))
    env = next(Layout.of(top / "ours").envs.glob("cpu-*"))
    record = environment.read(env) or {}
    return {
        "python": python.version,
        "cores": os.cpu_count(),
        "packages": len(record["packages"]),
        "files": len(record["files"]),
        "megabytes": record["bytes"] >> 20,
        "fingerprint": fingerprint.fingerprint(record["files"]),
        "seconds": {
            name: {"median": round(statistics.median(values), 2), "all": [round(one, 2) for one in values]}
            for name, values in times.items()
        },
    }


def main() -> None:
    """Measure, print, and write JSON when asked to."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--skip-cold", action="store_true")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="bench-environment-", dir="/var/tmp") as folder:
        found = measure(Path(folder), rounds=asked.rounds, cold=not asked.skip_cold)
    print(json.dumps(found, indent=2))
    if asked.json:
        asked.json.write_text(json.dumps(found, indent=2) + "\n")


if __name__ == "__main__":
    main()
