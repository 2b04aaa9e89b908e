"""Benchmark of the compile cache through its role: cold, unchanged, and restored from an archive.

    python bench/compile_cache.py --python /opt/dflash/envs/ID/bin/python --config trainer/configs/bench-27b.toml \
        --set 'drafter.devices=["cuda:0"]' --root /var/tmp/cache-bench --json cache.json

Each stage runs `ansible-playbook bench/compile_cache.yml`, which applies the role `compile_cache`. `--python` is an
interpreter with the trainer's packages. `*_seconds` is the time of the warm-up inside a process; `wall_*` is the time
of the whole playbook: Ansible, process starts, loading the models, and the second process if there is one.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

REPO = Path(__file__).resolve().parents[1]
SITES = "import site, sys; print('\\n'.join(dict.fromkeys([*site.getsitepackages(), *sys.path])))"


def make_box(root: Path, python: str, config: Path) -> None:
    """Create a root with one environment that uses the packages of `python`, and this checkout as its release."""
    env, release = root / "envs" / "bench", root / "releases" / "bench"
    paths = subprocess.run([python, "-c", SITES], capture_output=True, text=True, check=True).stdout.splitlines()
    subprocess.run([python, "-m", "venv", "--without-pip", str(env)], check=True)
    site = next((env / "lib").glob("python3.*")) / "site-packages"
    kept = [line for line in paths if line.endswith("-packages") or line in os.environ.get("PYTHONPATH", "").split(":")]
    (site / "bench.pth").write_text("".join(f"{line}\n" for line in kept if line))
    (env / "env.json").write_text("{}")
    release.mkdir(parents=True)
    shutil.copytree(REPO / "trainer", release / "trainer", ignore=shutil.ignore_patterns("__pycache__", "data"))
    shutil.copy(config, release / "trainer" / "configs" / config.name)
    (release / "release.json").write_text('{"tree_hash": "t", "files": {}}')


def play(ansible: str, variables: dict[str, Any]) -> float:
    """Run the role once; return the wall time of the whole playbook in seconds."""
    started = time.perf_counter()
    argv = [
        *shlex.split(ansible),
        "-i",
        "localhost,",
        str(REPO / "bench/compile_cache.yml"),
        "-e",
        json.dumps(variables),
    ]
    subprocess.run(argv, check=True, cwd=REPO)
    return round(time.perf_counter() - started, 2)


def record(root: Path) -> tuple[Path, dict[str, Any]]:
    """Return the only cache folder and its cache.json."""
    file = next((root / "caches").glob("*/cache.json"))
    return file.parent, json.loads(file.read_text())


def cache_check(root: Path) -> dict[str, Any]:
    """Return the recorded check of the only shape entry."""
    shapes: dict[str, Any] = record(root)[1]["shapes"]
    return next(iter(shapes.values()))


def measure(root: Path, ansible: str, variables: dict[str, Any], output: Path) -> dict[str, Any]:
    """Run all stages and return the figures; `output` is updated after each stage."""
    rows: dict[str, Any] = {}

    def add(**figures: Any) -> None:
        rows.update(figures)
        output.write_text(json.dumps(rows, indent=2) + "\n")

    add(wall_cold=play(ansible, {**variables, "compile_cache_archive": True}))
    folder, cache = record(root)
    first = cache_check(root)
    add(
        hardware=cache["hardware"],
        torch=first["torch"],
        cold_seconds=first["cold_seconds"],
        warm_seconds=first["warm_seconds"],
        load_seconds=first["load_seconds"],
        warm_misses=first["misses"],
        counters=first["counters"],
        bytes=sum(int(row[0]) for row in cache["files"].values()),
    )
    archive = next(path for path in (root / "archives").iterdir() if path.suffix != ".json")
    add(archive_bytes=archive.stat().st_size, cold_over_warm=round(first["cold_seconds"] / first["warm_seconds"], 1))
    add(wall_unchanged=play(ansible, variables))
    shutil.rmtree(folder)
    add(wall_restored=play(ansible, {**variables, "compile_cache_archived": str(archive)}))
    restored = cache_check(root)
    add(
        restored_seconds=restored["warm_seconds"],
        restored_misses=restored["misses"],
        cold_over_restored=round(first["cold_seconds"] / restored["warm_seconds"], 1),
    )
    return rows


def main() -> None:
    """Run the benchmark and print its figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--python", default=sys.executable)
    parser.add_argument("--ansible", default=str(Path(sys.executable).parent / "ansible-playbook"))
    parser.add_argument("--config", type=Path, default=REPO / "trainer/configs/bench-27b.toml")
    parser.add_argument("--set", action="append", default=[], metavar="section.key=value")
    parser.add_argument("--root", type=Path, required=True)
    parser.add_argument("--json", type=Path, required=True)
    options = parser.parse_args()
    make_box(options.root, options.python, options.config)
    variables = {
        "dflash_root": str(options.root),
        "dflash_workspace": str(options.root),
        "dflash_profile": "cpu",
        "dflash_config": options.config.name,
        "dflash_overrides": options.set,
        "compile_cache_select": False,
        "compile_cache_env_id": "bench",
        "compile_cache_release_id": "bench",
        "ansible_python_interpreter": sys.executable,
    }
    print(json.dumps(measure(options.root, options.ansible, variables, options.json), indent=2))


if __name__ == "__main__":
    main()
