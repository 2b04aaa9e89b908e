"""Compare the environment build with a bare `uv pip sync` of the same lockfile, on one machine in one run.

    .venv/bin/python bench/environment.py --json environment.json
    .venv/bin/python bench/environment.py --skip-cold --rounds 5

Cold: uv's cache is empty and everything is downloaded. Warm: the cache is filled. No-op: the environment exists and is
compared with its record. Both builds copy files out of the cache. The time of our build includes everything that a
deploy does on the box: the self-test, which compiles bytecode, the hashes of all files, and the record.

The order of the cases alternates between rounds. Before each case the same folders are removed and the disk is synced,
because on a virtual machine the cost of a copy depends mostly on recently freed memory. The report has the difference
of the two builds in each round, in seconds and in CPU seconds.
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
    """Cost of a case.

    Args:
        seconds: wall-clock time.
        cpu_seconds: CPU time of this process and its finished children.
    """

    seconds: float
    cpu_seconds: float

    def __sub__(self, other: Cost) -> Cost:
        return Cost(self.seconds - other.seconds, self.cpu_seconds - other.cpu_seconds)


def now() -> Cost:
    """Return wall-clock and CPU time so far."""
    usage = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return Cost(time.monotonic(), sum(part.ru_utime + part.ru_stime for part in usage))


def bare(target: Path, cache: Path, python: str) -> None:
    """Create a virtual environment and install the lockfile with uv, and nothing else."""
    settings = uv_install.uv_environment(cache)
    subprocess.run([UV, "venv", "-q", "--no-project", "--python", python, target], check=True, env=settings)
    folders = [option for folder in sources.local_wheel_folders() for option in ("--find-links", str(folder))]
    flags = ["--require-hashes", "--only-binary", ":all:", "--python", str(target / "bin/python")]
    subprocess.run([UV, "pip", "sync", "-q", *flags, *folders, LOCK], check=True, env=settings)


def arguments(root: Path) -> dict[str, Any]:
    """Return the module's arguments as the role passes them."""
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
        "find_links": [str(folder) for folder in sources.local_wheel_folders()],
        "cache_dir": "",
        "install_packages": False,
        "self_test_gpus": False,
    }


def ours(params: dict[str, Any]) -> None:
    """Run the build job in this process on a box that already has uv."""
    layout = Layout.of(params["root"])
    program = uv_binary.install_path(layout, uv_binary.uv_pin(params["uv_lock"]))
    program.parent.mkdir(parents=True)
    shutil.copy(UV, program)
    layout.jobs.mkdir()
    with (layout.jobs / "log").open("w") as log:
        stdout = os.dup(1)
        os.dup2(log.fileno(), 1)
        try:
            build.build(params, Progress(layout.jobs))
        finally:
            os.dup2(stdout, 1)
            os.close(stdout)


def clean(*folders: Path) -> None:
    """Remove folders and sync the disk, so that no case pays for the writes of another."""
    for folder in folders:
        shutil.rmtree(folder, ignore_errors=True)
    os.sync()


def no_op(params: dict[str, Any], *, full: bool = False) -> None:
    """Compare a complete environment with its record."""
    layout = Layout.of(params["root"])
    status = inspection.inspect(layout, inspection.Spec.from_params(params, layout), full=full)
    assert status.state == "complete", status


class Cases:
    """Timed cases below one folder."""

    def __init__(self, top: Path) -> None:
        self.top = top
        self.params = arguments(top / "ours")
        self.layout = Layout.of(self.params["root"])
        self.cache = self.layout.uv_cache
        self.python = interpreters.find("", inspection.lockfile.parse(LOCK.read_text()).pythons)
        self.costs: dict[str, list[Cost]] = {}

    def measure(self, name: str, work: Callable[[], Any]) -> None:
        """Time one case and print it."""
        start = now()
        work()
        cost = now() - start
        self.costs.setdefault(name, []).append(cost)
        print(f"{name}: {cost.seconds:.2f} s, {cost.cpu_seconds:.2f} CPU seconds", flush=True)

    def clean(self, *more: Path) -> None:
        """Remove the folders that cases create."""
        clean(self.top / "bare", self.layout.envs, self.layout.jobs, self.layout.root / "tools", *more)

    def bare(self, name: str, *removed: Path) -> None:
        """Time bare uv after removing folders."""
        self.clean(*removed)
        self.measure(name, lambda: bare(self.top / "bare", self.cache, str(self.python.path)))

    def ours(self, name: str, *removed: Path) -> None:
        """Time our build after removing folders."""
        self.clean(*removed)
        self.measure(name, lambda: ours(self.params))

    def alternate(self, rounds: int, *cases: Callable[[], None]) -> None:
        """Run the cases in turn; the first one alternates between rounds."""
        for number in range(rounds):
            first = number % len(cases)
            for case in cases[first:] + cases[:first]:
                case()


def run_cases(top: Path, *, rounds: int, cold: bool) -> dict[str, Any]:
    """Run all cases and return the report."""
    cases = Cases(top)
    if cold:
        cases.alternate(
            rounds,
            lambda: cases.bare("cold bare", cases.cache),
            lambda: cases.ours("cold ours", cases.cache),
        )
    else:
        cases.bare("fill the cache")
    cases.alternate(rounds, lambda: cases.bare("warm bare"), lambda: cases.ours("warm ours"))
    cases.ours("before the no-op")
    for _ in range(rounds):
        cases.measure("no-op", lambda: no_op(cases.params))
        cases.measure("no-op, every file hashed", lambda: no_op(cases.params, full=True))
    return report(cases)


PAIRS = (("cold ours", "cold bare"), ("warm ours", "warm bare"))


def spread(costs: Iterable[Cost]) -> dict[str, Any]:
    """Return the median and all values of both times."""
    result = {}
    for field in dataclasses.fields(Cost):
        values = [getattr(cost, field.name) for cost in costs]
        rounded = [round(value, 2) for value in values]
        result[field.name] = {"median": round(statistics.median(values), 2), "all": rounded}
    return result


def differences(costs: dict[str, list[Cost]]) -> dict[str, Any]:
    """Return our build minus bare uv of the same round, for each measured pair of cases."""
    return {
        f"{ours} less {bare}": spread([mine - other for mine, other in zip(costs[ours], costs[bare], strict=True)])
        for ours, bare in PAIRS
        if ours in costs and bare in costs
    }


def report(cases: Cases) -> dict[str, Any]:
    """Return facts of the environment and the cost of each case."""
    record = inspection.read_record(next(cases.layout.envs.glob("cpu-*"))) or {}
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
    """Run the benchmark, print the report, and write it as JSON if requested."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--skip-cold", action="store_true")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="bench-environment-", dir="/var/tmp") as folder:
        result = run_cases(Path(folder), rounds=options.rounds, cold=not options.skip_cold)
    print(json.dumps(result, indent=2))
    if options.json:
        options.json.write_text(json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    main()
