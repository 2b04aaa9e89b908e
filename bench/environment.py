"""Our environment build against bare `uv pip sync` of the same lock, in one run on one machine.

    .venv/bin/python bench/environment.py --json environment.json
    .venv/bin/python bench/environment.py --skip-cold --rounds 5

Cold: uv's cache is empty, so everything is fetched. Warm: the cache is filled. No-op: the environment exists and is
compared with its record. Both copy out of the cache. Our times include everything that a deploy does on the box: the
proof in new processes, which compiles bytecode, the hashes of all files and the record.

The first case alternates between rounds, the disk is idle before each case, and each starts after the same folders were
removed: on a virtual machine the memory that was just freed decides most of the cost of a copy. So ours is also
compared with bare round by round, in seconds and in processor seconds.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

REPO = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(REPO / "plugins/module_utils"))

from dflash_ops.core import tree_manifest  # noqa: E402
from dflash_ops.core.jobs import Progress  # noqa: E402
from dflash_ops.core.paths import Layout  # noqa: E402
from dflash_ops.environment import build, inspection, interpreters, sources, uv_binary, uv_install  # noqa: E402

UV = Path(sys.executable).parent / "uv"
LOCK = REPO / "trainer/locks/cpu.lock"


@dataclasses.dataclass(frozen=True)
class Cost:
    """What a case took.

    Args:
        seconds: on the clock.
        processor: seconds of all processors, this process and those it waited for.
    """

    seconds: float
    processor: float

    def __sub__(self, other: Cost) -> Cost:
        return Cost(self.seconds - other.seconds, self.processor - other.processor)


def now() -> Cost:
    """Return clock and processor seconds so far."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return Cost(time.monotonic(), sum(one.ru_utime + one.ru_stime for one in used))


def bare(target: Path, cache: Path, python: str) -> None:
    """Make a virtual environment and let uv fill it from the lock, and nothing else."""
    settings = uv_install.uv_environment(cache)
    subprocess.run([UV, "venv", "-q", "--no-project", "--python", python, target], check=True, env=settings)
    folders = [word for folder in sources.folders_of_this_machine() for word in ("--find-links", str(folder))]
    flags = ["--require-hashes", "--only-binary", ":all:", "--python", str(target / "bin/python")]
    subprocess.run([UV, "pip", "sync", "-q", *flags, *folders, LOCK], check=True, env=settings)


def arguments(root: Path) -> dict[str, Any]:
    """Return what the role gives the module."""
    return {
        "root": str(root),
        "workspace": "",
        "profile": "cpu",
        "lock": LOCK.read_text(),
        "lock_name": LOCK.name,
        "uv_lock": (LOCK.parent / "uv.lock").read_text(),
        "python": "",
        "index_urls": {},
        "heal": False,
        "find_links": [str(folder) for folder in sources.folders_of_this_machine()],
        "cache_dir": "",
        "packages": False,
        "self_test_gpus": False,
    }


def ours(want: dict[str, Any]) -> None:
    """Build as the job does, on a box that has uv already."""
    layout = Layout.of(want["root"])
    program = uv_binary.place(layout, uv_binary.pinned(want["uv_lock"]))
    program.parent.mkdir(parents=True)
    shutil.copy(UV, program)
    layout.jobs.mkdir()
    with (layout.jobs / "log").open("w") as log:
        held = os.dup(1)
        os.dup2(log.fileno(), 1)
        try:
            build.build(want, Progress(layout.jobs))
        finally:
            os.dup2(held, 1)
            os.close(held)


def forget(*folders: Path) -> None:
    """Remove folders and let the disk come to rest, so that nobody pays for what another case wrote."""
    for folder in folders:
        shutil.rmtree(folder, ignore_errors=True)
    os.sync()


def no_op(want: dict[str, Any], *, full: bool = False) -> None:
    layout = Layout.of(want["root"])
    status = inspection.inspect(layout, inspection.Spec.of(want, layout), full=full)
    assert status.state == "complete", status


class Cases:
    """All ways to build, timed in turn below one folder."""

    def __init__(self, top: Path) -> None:
        self.top = top
        self.want = arguments(top / "ours")
        self.layout = Layout.of(self.want["root"])
        self.cache = self.layout.uv_cache
        self.python = interpreters.find("", inspection.lockfile.parse(LOCK.read_text()).pythons)
        self.costs: dict[str, list[Cost]] = {}

    def note(self, name: str, work: Callable[[], Any]) -> None:
        """Time one case and print it."""
        start = now()
        work()
        cost = now() - start
        self.costs.setdefault(name, []).append(cost)
        print(f"{name}: {cost.seconds:.2f} s, {cost.processor:.2f} s of the processors", flush=True)

    def forget(self, *more: Path) -> None:
        """Remove what a case made."""
        forget(self.top / "bare", self.layout.envs, self.layout.jobs, self.layout.root / "tools", *more)

    def bare(self, name: str, *gone: Path) -> None:
        self.forget(*gone)
        self.note(name, lambda: bare(self.top / "bare", self.cache, str(self.python.path)))

    def ours(self, name: str, *gone: Path) -> None:
        self.forget(*gone)
        self.note(name, lambda: ours(self.want))

    def take_turns(self, rounds: int, *cases: Callable[[], None]) -> None:
        """Let cases follow each other; who comes first changes from round to round."""
        for number in range(rounds):
            first = number % len(cases)
            for case in cases[first:] + cases[:first]:
                case()


def measure(top: Path, *, rounds: int, cold: bool) -> dict[str, Any]:
    """Return the seconds of each case."""
    cases = Cases(top)
    if cold:
        cases.take_turns(
            rounds,
            lambda: cases.bare("cold bare", cases.cache),
            lambda: cases.ours("cold ours", cases.cache),
        )
    else:
        cases.bare("filling the cache")
    cases.take_turns(rounds, lambda: cases.bare("warm bare"), lambda: cases.ours("warm ours"))
    cases.ours("before the no-op")
    for _ in range(rounds):
        cases.note("no-op", lambda: no_op(cases.want))
        cases.note("no-op, every file hashed", lambda: no_op(cases.want, full=True))
    return report(cases)


PAIRS = (("cold ours", "cold bare"), ("warm ours", "warm bare"))


def spread(costs: Iterable[Cost]) -> dict[str, Any]:
    """Return the median and all of both kinds of seconds."""
    found = {}
    for field in dataclasses.fields(Cost):
        values = [getattr(one, field.name) for one in costs]
        found[field.name] = {"median": round(statistics.median(values), 2), "all": [round(one, 2) for one in values]}
    return found


def differences(costs: dict[str, list[Cost]]) -> dict[str, Any]:
    """Return ours less bare of the same round, for each pair of cases that was measured."""
    return {
        f"{one} less {other}": spread([mine - bare for mine, bare in zip(costs[one], costs[other], strict=True)])
        for one, other in PAIRS
        if one in costs and other in costs
    }


def report(cases: Cases) -> dict[str, Any]:
    """Return what was built and how long each case took."""
    record = inspection.read(next(cases.layout.envs.glob("cpu-*"))) or {}
    return {
        "python": cases.python.version,
        "cores": os.cpu_count(),
        "packages": len(record["packages"]),
        "files": len(record["files"]),
        "megabytes": record["bytes"] >> 20,
        "fingerprint": tree_manifest.fingerprint(record["files"]),
        "cases": {name: spread(costs) for name, costs in cases.costs.items()},
        "round by round": differences(cases.costs),
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
