"""Our environment build against bare `uv pip sync` of the same lock, in one run on one machine.

    .venv/bin/python bench/environment.py --json environment.json
    .venv/bin/python bench/environment.py --skip-cold --rounds 5

Cold: an empty cache of uv, so everything is fetched. Warm: the cache is filled. No-op: the environment is there, and is
compared with its record. Ours has everything in it that a deploy does on the box: the proof in new processes, bytecode,
hashes of all files, the record. With a filled cache both copy files (`--link-mode copy`): a hard link would let an edit
in one environment change the cache and every environment built later. With an empty cache ours fills it afterwards,
which has a line of its own. Who comes first alternates, the disk is at rest before each case, and each begins after the
same folders were removed: on a virtual machine the memory that was just freed decides most of what a copy costs.
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


class Cases:
    """Both ways to build, timed in turn below one folder."""

    def __init__(self, top: Path) -> None:
        self.top = top
        self.cache = top / "cache"
        self.want = arguments(top, self.cache)
        self.python = interpreters.find("", environment.lockfile.parse(LOCK.read_text()).pythons)
        self.times: dict[str, list[float]] = {}

    def note(self, name: str, work: Callable[[], Any]) -> None:
        """Time one case and print it."""
        self.times.setdefault(name, []).append(timed(work))
        print(f"{name}: {self.times[name][-1]:.2f} s", flush=True)

    def bare(self, name: str, *gone: Path, link_mode: str = "copy") -> None:
        forget(self.top / "bare", self.top / "ours", *gone)
        self.note(name, lambda: bare(self.top, self.cache, str(self.python.path), link_mode=link_mode))

    def ours(self, name: str, *gone: Path) -> None:
        forget(self.top / "bare", self.top / "ours", *gone)
        self.note(name, lambda: ours(self.want))

    def cold(self) -> None:
        self.bare("cold bare", self.cache)

    def cold_ours(self) -> None:
        self.ours("cold ours", self.cache)
        self.note("cold ours, cache filled afterwards", lambda: wait_for_cache(self.want))

    def alternate(self, rounds: int, one: Callable[[], None], other: Callable[[], None]) -> None:
        """Let two cases follow each other; who comes first changes from round to round."""
        for number in range(rounds):
            for case in (one, other) if number % 2 == 0 else (other, one):
                case()


def measure(top: Path, *, rounds: int, cold: bool) -> dict[str, Any]:
    """Return the seconds of each case."""
    cases = Cases(top)
    cases.alternate(rounds if cold else 0, cases.cold, cases.cold_ours)
    if not cold:
        cases.bare("filling the cache")
    cases.ours("ours, keeping bytecode")
    cases.alternate(rounds, lambda: cases.bare("warm bare"), lambda: cases.ours("warm ours"))
    cases.bare("warm bare, hard links", link_mode="hardlink")
    cases.ours("before the no-op")
    for _ in range(rounds):
        cases.note("no-op", lambda: no_op(cases.want))
        cases.note("no-op, every file hashed", lambda: no_op(cases.want, full=True))
    return report(cases)


def report(cases: Cases) -> dict[str, Any]:
    """Return what was built and how long each case took."""
    record = environment.read(next(Layout.of(cases.want["root"]).envs.glob("cpu-*"))) or {}
    return {
        "python": cases.python.version,
        "cores": os.cpu_count(),
        "packages": len(record["packages"]),
        "files": len(record["files"]),
        "megabytes": record["bytes"] >> 20,
        "fingerprint": fingerprint.fingerprint(record["files"]),
        "seconds": {
            name: {"median": round(statistics.median(values), 2), "all": [round(one, 2) for one in values]}
            for name, values in cases.times.items()
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
