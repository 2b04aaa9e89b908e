r"""Time the life cycle of a box through the playbooks: deploy, train, status, stop, restore the cache, resume, report.

    python bench/whole_life.py --root /opt/box --config bench-27b.toml --random-data 4096 --steps 300 \
        --set 'drafter.devices=["cuda:0"]' --extra-vars @box.yml --json life.json

The box is this machine (inventory/localhost.yml); further variables, such as the profile or a wheelhouse, go into
`--extra-vars`. With `--random-data N` the run trains on samples of N random ids. Each stage is one operator command,
and its seconds are those of the command. The cache's figures come from cache.json, the run's from metrics.jsonl after
the first steps. The report is rewritten after every stage.
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

REPO = Path(__file__).resolve().parents[1]
SETTLING = 8
"""Unmeasured first steps: the queue fills, the clocks settle."""
WRITE_RANDOM = """
import sys; sys.path.insert(0, sys.argv[1])
from pathlib import Path
import numpy as np
from dflash_trainer.data.arrow import write_samples
folder, length, vocabulary = Path(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4])
folder.mkdir(parents=True, exist_ok=True)
draw, mask = np.random.default_rng(0), [0] * (length // 8) + [1] * (length - length // 8)
rows = ((f"random-{n}", draw.integers(0, vocabulary, length).tolist(), mask) for n in range(64))
write_samples(folder / "random.arrow", rows)
"""


@dataclass
class Life:
    """A box, the options of its playbooks, and the report so far."""

    options: argparse.Namespace
    overrides: list[str]
    report: dict[str, Any] = field(default_factory=dict)

    @property
    def root(self) -> Path:
        """Return the absolute path of dflash_root."""
        return Path(self.options.root).expanduser().absolute()

    @property
    def run(self) -> Path:
        """Return the folder of the current run."""
        return (self.root / "current").resolve()

    def command(self, *arguments: str) -> list[str]:
        """Return the command line of a playbook for this box."""
        variables = {
            "dflash_root": str(self.root),
            "dflash_workspace": str(self.root),
            "dflash_config": self.options.config,
            "dflash_overrides": self.overrides,
        }
        extra_vars = [argument for extra in self.options.extra_vars for argument in ("-e", extra)]
        return [self.options.ansible, *arguments, "-e", json.dumps(variables), *extra_vars]

    def play(self, stage: str, *arguments: str) -> None:
        """Run a playbook and record its seconds; a failure ends the script."""
        print(f"\n==> {stage}: {' '.join(arguments)}", flush=True)
        started = time.perf_counter()
        subprocess.run(self.command(*arguments), cwd=REPO, check=True)
        self.record(stage, seconds=round(time.perf_counter() - started, 2))

    def record(self, stage: str, **figures: Any) -> None:
        """Add figures of a stage to the report and write it."""
        self.report.setdefault(stage, {}).update(figures)
        self.options.json.write_text(json.dumps(self.report, indent=2) + "\n", encoding="utf-8")

    def report_of(self, playbook: str) -> dict[str, Any]:
        """Run a read-only playbook and return its JSON report."""
        file = self.root / "report.json"
        self.play(Path(playbook).stem, playbook, "-e", f"json_out={file}")
        report: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
        return report

    def cache(self) -> tuple[Path, dict[str, Any]]:
        """Return the only cache folder and its latest cache check."""
        file = next((self.root / "caches").glob("*/cache.json"))
        record = json.loads(file.read_text(encoding="utf-8"))
        latest: dict[str, Any] = max(record["shapes"].values(), key=lambda shape: shape.get("checked_at", ""))
        return file.parent, latest


def main() -> int:
    """Run all stages; return 0 if each succeeded."""
    options = parse()
    life = Life(options, list(options.set))
    life.root.mkdir(parents=True, exist_ok=True)
    options.json.write_text("{}\n", encoding="utf-8")  # fail now if the path is not writable
    if options.random_data:
        folder = life.root / "random-data"
        command = [options.python, "-c", WRITE_RANDOM, str(REPO / "trainer"), str(folder), str(options.random_data)]
        subprocess.run([*command, str(options.vocabulary)], check=True)
        life.overrides += [f'data.path="{folder}"', 'data.eval_path=""', f"data.buckets=[{options.random_data}]"]
        life.overrides += ["evaluation.every_steps=0", "optimizer.epochs=1000000", "optimizer.max_steps=1000000"]
    first_life(life)
    wipe_and_restore(life)
    second_life(life)
    print(json.dumps(life.report, indent=2))
    return 0


def first_life(life: Life) -> None:
    """Deploy on an empty box, train the given number of steps, check and stop the run."""
    life.play("deploy", "deploy.yml")
    note_cache(life, "deploy", "cold_seconds", "warm_seconds", "misses", "counters", "load_seconds", "torch")
    wait_for_step(life, life.options.steps)
    for name in ("status", "verify"):
        report = life.report_of(f"playbooks/{name}.yml")
        life.record(name, ok=report["ok"], problems=report["problems"])
    life.play("deploy_again", "deploy.yml")
    life.play("stop", "playbooks/stop.yml")
    life.record("training", **training_figures(life.run))


def wipe_and_restore(life: Life) -> None:
    """Prewarm a warm cache, archive, delete and restore it; with --wipe, build it again."""
    life.play("warmup_warm", "relaunch.yml", "--tags", "warmup")
    life.play("pack", "relaunch.yml", "--tags", "warmup", "-e", "compile_cache_archive=true")
    folder, _ = life.cache()
    archive = next(path for path in (life.root / "archives").iterdir() if path.suffix != ".json")
    size = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
    life.record("pack", archive_bytes=archive.stat().st_size, cache_bytes=size)
    shutil.rmtree(folder)
    life.play("restore", "relaunch.yml", "--tags", "warmup", "-e", f"compile_cache_restore={archive}")
    note_cache(life, "restore", "warm_seconds", "misses", "counters")
    if life.options.wipe:
        life.play("wipe", "relaunch.yml", "--tags", "warmup", "-e", "compile_cache_wipe=true")
        note_cache(life, "wipe", "cold_seconds", "warm_seconds", "misses")


def second_life(life: Life) -> None:
    """Resume the run from its checkpoint, stop it and write its report."""
    step = read_state(life.run)["step"]
    life.play("resume", "relaunch.yml", "--tags", "launch,verify")
    row = first_row(life.run)
    life.record("resume", stopped_at=step, first_step=row["step"], resumed=row["step"] == step + 1)
    life.play("stop_again", "playbooks/stop.yml")
    life.play("report", "playbooks/report.yml")


def note_cache(life: Life, stage: str, *names: str) -> None:
    """Record figures of the latest cache check."""
    latest = life.cache()[1]
    life.record(stage, **{name: latest[name] for name in names if name in latest})


def rows_of(run: Path) -> list[dict[str, Any]]:
    """Return the complete lines of a run's metrics.jsonl."""
    file = run / "metrics.jsonl"
    lines = file.read_text(encoding="utf-8").split("\n")[:-1] if file.exists() else []
    return [json.loads(line) for line in lines]


def first_row(run: Path) -> dict[str, Any]:
    """Return the row of a run's first step."""
    return rows_of(run)[0]


def read_state(run: Path) -> dict[str, Any]:
    """Return the trainer's state.json."""
    state: dict[str, Any] = json.loads((run / "state.json").read_text(encoding="utf-8"))
    return state


def wait_for_step(life: Life, step: int) -> None:
    """Wait until the run reaches a step.

    Raises:
        SystemExit: the run ended before that step.
    """
    while (now := read_state(life.run))["step"] < step:
        if now["phase"] in ("failed", "stopped", "finished"):
            raise SystemExit(f"the run is {now['phase']} at step {now['step']}: {now['detail']}")
        time.sleep(0.5)


def training_figures(run: Path) -> dict[str, Any]:
    """Return speed, memory and counters of the measured steps."""
    rows = rows_of(run)[SETTLING:]
    seconds = rows[-1]["time"] - rows[0]["time"]
    last = rows[-1]
    return {
        "steps": len(rows),
        "step_ms": round(seconds / max(1, len(rows) - 1) * 1e3, 2),
        "tok_s": round((last["tokens"] - rows[0]["tokens"]) / seconds, 1),
        "drafter_ms": round(statistics.median(row["drafter_ms"] for row in rows), 2),
        "queue_depth": statistics.mean(row["queue_depth"] for row in rows),
        "loss": [rows[0]["loss"], last["loss"]],
        "workers": shares(rows[0], last),
        **{name: last[name] for name in ("recompiles", "device_allocs", "device_frees", "skipped_batches", "gpus")},
    }


def shares(first: dict[str, Any], last: dict[str, Any]) -> dict[str, dict[str, float]]:
    """Return each worker's busy share between two steps and its milliseconds of Python per batch."""
    seconds, before = last["time"] - first["time"], {worker["name"]: worker for worker in first["workers"]}
    found = {}
    for worker in last["workers"]:
        batches, busy, host = (
            worker[key] - before[worker["name"]][key] for key in ("batches", "busy_seconds", "host_seconds")
        )
        found[worker["name"]] = {
            "batches": batches,
            "busy": round(busy / seconds, 3),
            "host_ms": round(host * 1e3 / max(1, batches), 2),
        }
    return found


def parse_steps(text: str) -> int:
    """Parse --steps; at least two steps must be measured to have a time between them."""
    if not text.isdecimal() or int(text) < SETTLING + 2:
        raise argparse.ArgumentTypeError(f"{text}: give {SETTLING + 2} or more; the first {SETTLING} are not measured")
    return int(text)


def parse() -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--root", required=True, help="dflash_root; created if missing")
    parser.add_argument("--config", default="demo.toml", help="a file below trainer/configs")
    parser.add_argument("--set", action="append", default=[], metavar="section.key=value")
    parser.add_argument("--extra-vars", action="append", default=[], help="extra variables: JSON, or @FILE")
    parser.add_argument("--random-data", type=int, default=0, metavar="TOKENS", help="train on random ids")
    parser.add_argument("--vocabulary", type=int, default=248320, help="vocabulary size of the random data")
    parser.add_argument("--python", default=sys.executable, help="an interpreter with pyarrow and numpy")
    parser.add_argument("--ansible", default=str(Path(sys.executable).parent / "ansible-playbook"))
    parser.add_argument("--steps", type=parse_steps, default=300, help="steps before the run is stopped")
    parser.add_argument("--wipe", action="store_true", help="also wipe the cache and build it again")
    parser.add_argument("--json", type=Path, required=True)
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
