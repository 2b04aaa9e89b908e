"""Times the compile cache through its role: cold and proved, again, wiped and restored from the archive.

    python bench/compile_cache.py --python /opt/dflash/envs/ID/bin/python --config trainer/configs/bench-27b.toml \
        --set 'drafter.devices=["cuda:0"]' --root /var/tmp/cache-bench --json cache.json

Every stage is `ansible-playbook bench/compile_cache.yml`, which is the role `compile_cache`. `--python` names an
interpreter that has the trainer's packages. `seconds` are those of the warm-up inside a process; `wall` is the whole
playbook: Ansible, process starts, loading the models, and the proof by a second process where there is one.
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
    """A root with one environment that sees the packages of `python`, and this checkout as the release."""
    env, release = root / "envs" / "bench", root / "releases" / "bench"
    told = subprocess.run([python, "-c", SITES], capture_output=True, text=True, check=True).stdout.splitlines()
    subprocess.run([python, "-m", "venv", "--without-pip", str(env)], check=True)
    site = next((env / "lib").glob("python3.*")) / "site-packages"
    kept = [line for line in told if line.endswith("-packages") or line in os.environ.get("PYTHONPATH", "").split(":")]
    (site / "bench.pth").write_text("".join(f"{line}\n" for line in kept if line))
    (env / "env.json").write_text("{}")
    release.mkdir(parents=True)
    shutil.copytree(REPO / "trainer", release / "trainer", ignore=shutil.ignore_patterns("__pycache__", "data"))
    shutil.copy(config, release / "trainer" / "configs" / config.name)
    (release / "release.json").write_text('{"tree_hash": "t", "files": {}}')


def play(ansible: str, variables: dict[str, Any]) -> float:
    """Run the role once; return the wall time of the whole playbook in seconds."""
    started = time.perf_counter()
    words = [
        *shlex.split(ansible),
        "-i",
        "localhost,",
        str(REPO / "bench/compile_cache.yml"),
        "-e",
        json.dumps(variables),
    ]
    subprocess.run(words, check=True, cwd=REPO)
    return round(time.perf_counter() - started, 2)


def record(root: Path) -> tuple[Path, dict[str, Any]]:
    """Return the one cache folder and its cache.json."""
    file = next((root / "caches").glob("*/cache.json"))
    return file.parent, json.loads(file.read_text())


def proof(root: Path) -> dict[str, Any]:
    """Return what the second process said."""
    shapes: dict[str, Any] = record(root)[1]["shapes"]
    return next(iter(shapes.values()))


def measure(root: Path, ansible: str, variables: dict[str, Any], note: Path) -> dict[str, Any]:
    """Run the stages and return the figures; `note` has them as far as they came."""
    rows: dict[str, Any] = {}

    def keep(**more: Any) -> None:
        rows.update(more)
        note.write_text(json.dumps(rows, indent=2) + "\n")

    keep(wall_cold=play(ansible, {**variables, "compile_cache_archive": True}))
    folder, told = record(root)
    first = proof(root)
    keep(
        hardware=told["hardware"],
        torch=first["torch"],
        cold_seconds=first["cold_seconds"],
        warm_seconds=first["warm_seconds"],
        load_seconds=first["load_seconds"],
        warm_misses=first["misses"],
        counters=first["counters"],
        bytes=sum(int(row[0]) for row in told["files"].values()),
    )
    archive = next(path for path in (root / "archives").iterdir() if path.suffix != ".json")
    keep(archive_bytes=archive.stat().st_size, cold_over_warm=round(first["cold_seconds"] / first["warm_seconds"], 1))
    keep(wall_nothing_to_do=play(ansible, variables))
    shutil.rmtree(folder)
    keep(wall_restored=play(ansible, {**variables, "compile_cache_archived": str(archive)}))
    again = proof(root)
    keep(
        restored_seconds=again["warm_seconds"],
        restored_misses=again["misses"],
        cold_over_restored=round(first["cold_seconds"] / again["warm_seconds"], 1),
    )
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--python", default=sys.executable)
    parser.add_argument("--ansible", default=str(Path(sys.executable).parent / "ansible-playbook"))
    parser.add_argument("--config", type=Path, default=REPO / "trainer/configs/bench-27b.toml")
    parser.add_argument("--set", action="append", default=[], metavar="section.key=value")
    parser.add_argument("--root", type=Path, required=True)
    parser.add_argument("--json", type=Path, required=True)
    given = parser.parse_args()
    make_box(given.root, given.python, given.config)
    variables = {
        "dflash_root": str(given.root),
        "dflash_workspace": str(given.root),
        "dflash_profile": "cpu",
        "dflash_config": given.config.name,
        "dflash_overrides": given.set,
        "compile_cache_select": False,
        "compile_cache_env_id": "bench",
        "compile_cache_release_id": "bench",
        "ansible_python_interpreter": sys.executable,
    }
    print(json.dumps(measure(given.root, given.ansible, variables, given.json), indent=2))


if __name__ == "__main__":
    main()
