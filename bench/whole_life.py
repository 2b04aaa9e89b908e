"""A box's whole life through the playbooks, timed: deploy, train, status, stop, cache restored, resume, report.

    python bench/whole_life.py --root /opt/box --config bench-27b.toml --random-data 4096 --steps 300 \\
        --set 'drafter.devices=["cuda:0"]' --extra-vars @box.yml --json life.json

The box is this machine (inventory/localhost.yml); `--extra-vars` says what else it needs: the profile, a wheelhouse.
With `--random-data N` the run trains on random ids, samples of N tokens. Each stage is one command that an operator
types. Seconds are those of the whole command; the cache's own figures come from cache.json, the run's from
metrics.jsonl, counted after the first steps. What came so far is written after every stage.
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
"""Steps that do not count: the queue fills, the clocks settle."""
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
    """One box, how its playbooks are called, and what was found so far."""

    given: argparse.Namespace
    overrides: list[str]
    report: dict[str, Any] = field(default_factory=dict)

    @property
    def root(self) -> Path:
        return Path(self.given.root).expanduser().absolute()

    @property
    def run(self) -> Path:
        """The folder of the current run."""
        return (self.root / "current").resolve()

    def command(self, *words: str) -> list[str]:
        """The argv of a playbook for this box."""
        variables = {
            "dflash_root": str(self.root),
            "dflash_workspace": str(self.root),
            "dflash_config": self.given.config,
            "dflash_overrides": self.overrides,
        }
        own = [word for extra in self.given.extra_vars for word in ("-e", extra)]
        return [self.given.ansible, *words, "-e", json.dumps(variables), *own]

    def play(self, stage: str, *words: str) -> None:
        """Run a playbook, note its seconds; a failure ends everything."""
        print(f"\n==> {stage}: {' '.join(words)}", flush=True)
        started = time.perf_counter()
        subprocess.run(self.command(*words), cwd=REPO, check=True)
        self.note(stage, seconds=round(time.perf_counter() - started, 2))

    def note(self, stage: str, **figures: Any) -> None:
        """Keep figures of a stage, on disk as well."""
        self.report.setdefault(stage, {}).update(figures)
        self.given.json.write_text(json.dumps(self.report, indent=2) + "\n", encoding="utf-8")

    def answer(self, playbook: str) -> dict[str, Any]:
        """What a reading playbook says as JSON."""
        file = self.root / "answer.json"
        self.play(Path(playbook).stem, playbook, "-e", f"json_out={file}")
        told: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
        return told

    def cache(self) -> tuple[Path, dict[str, Any]]:
        """The one cache folder, and what proved it last."""
        file = next((self.root / "caches").glob("*/cache.json"))
        record = json.loads(file.read_text(encoding="utf-8"))
        proof: dict[str, Any] = max(record["shapes"].values(), key=lambda shape: shape.get("checked_at", ""))
        return file.parent, proof


def main() -> int:
    """Run all stages; 0 when each did what it promises."""
    given = parse()
    life = Life(given, list(given.set))
    life.root.mkdir(parents=True, exist_ok=True)
    given.json.write_text("{}\n", encoding="utf-8")  # a path that cannot be written is told now
    if given.random_data:
        folder = life.root / "random-data"
        words = [given.python, "-c", WRITE_RANDOM, str(REPO / "trainer"), str(folder), str(given.random_data)]
        subprocess.run([*words, str(given.vocabulary)], check=True)
        life.overrides += [f'data.path="{folder}"', 'data.eval_path=""', f"data.buckets=[{given.random_data}]"]
        life.overrides += ["evaluation.every_steps=0", "optimizer.epochs=1000000", "optimizer.max_steps=1000000"]
    first_life(life)
    wipe_and_restore(life)
    second_life(life)
    print(json.dumps(life.report, indent=2))
    return 0


def first_life(life: Life) -> None:
    """From an empty box to a run of so many steps, looked at and stopped."""
    life.play("deploy", "deploy.yml")
    note_cache(life, "deploy", "cold_seconds", "warm_seconds", "misses", "counters", "load_seconds", "torch")
    wait_for_step(life, life.given.steps)
    told = life.answer("playbooks/status.yml")
    life.note("status", ok=told["ok"], problems=told["problems"])
    told = life.answer("playbooks/verify.yml")
    life.note("verify", ok=told["ok"], problems=told["problems"])
    life.play("deploy_again", "deploy.yml")
    life.play("stop", "playbooks/stop.yml")
    life.note("training", **course(life.run))


def wipe_and_restore(life: Life) -> None:
    """A warm cache has no work; it is packed, lost, restored, and where asked made anew."""
    life.play("warmup_warm", "relaunch.yml", "--tags", "warmup")
    life.play("pack", "relaunch.yml", "--tags", "warmup", "-e", "compile_cache_archive=true")
    folder, _ = life.cache()
    archive = next(path for path in (life.root / "archives").iterdir() if path.suffix != ".json")
    size = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
    life.note("pack", archive_bytes=archive.stat().st_size, cache_bytes=size)
    shutil.rmtree(folder)
    life.play("restore", "relaunch.yml", "--tags", "warmup", "-e", f"compile_cache_restore={archive}")
    note_cache(life, "restore", "warm_seconds", "misses", "counters")
    if life.given.wipe:
        life.play("wipe", "relaunch.yml", "--tags", "warmup", "-e", "compile_cache_wipe=true")
        note_cache(life, "wipe", "cold_seconds", "warm_seconds", "misses")


def second_life(life: Life) -> None:
    """The run goes on from its checkpoint, is stopped, and is reported on."""
    step = state(life.run)["step"]
    life.play("resume", "relaunch.yml", "--tags", "launch,verify")
    row = first_row(life.run)
    life.note("resume", stopped_at=step, first_step=row["step"], went_on=row["step"] == step + 1)
    life.play("stop_again", "playbooks/stop.yml")
    life.play("report", "playbooks/report.yml")


def note_cache(life: Life, stage: str, *names: str) -> None:
    """Keep what the proof of the cache says."""
    proof = life.cache()[1]
    life.note(stage, **{name: proof[name] for name in names if name in proof})


def rows_of(run: Path) -> list[dict[str, Any]]:
    """Whole lines of a run's metrics.jsonl."""
    file = run / "metrics.jsonl"
    lines = file.read_text(encoding="utf-8").split("\n")[:-1] if file.exists() else []
    return [json.loads(line) for line in lines]


def first_row(run: Path) -> dict[str, Any]:
    """The first step that a run trained."""
    return rows_of(run)[0]


def state(run: Path) -> dict[str, Any]:
    """The trainer's state.json."""
    told: dict[str, Any] = json.loads((run / "state.json").read_text(encoding="utf-8"))
    return told


def wait_for_step(life: Life, step: int) -> None:
    """Return once the run is there; a run that ended is an error."""
    while (now := state(life.run))["step"] < step:
        if now["phase"] in ("failed", "stopped", "finished"):
            raise SystemExit(f"the run {now['phase']} at step {now['step']}: {now['detail']}")
        time.sleep(0.5)


def course(run: Path) -> dict[str, Any]:
    """Speed, memory and counters of the steps that count."""
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
    """Busy share of each worker between two steps, and milliseconds of Python a batch."""
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


def enough_steps(text: str) -> int:
    """A number of steps of which two count, so that there is a time between them."""
    if not text.isdecimal() or int(text) < SETTLING + 2:
        raise argparse.ArgumentTypeError(f"{text}: give {SETTLING + 2} or more; the first {SETTLING} do not count")
    return int(text)


def parse() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--root", required=True, help="dflash_root, made here")
    parser.add_argument("--config", default="demo.toml", help="a file below trainer/configs")
    parser.add_argument("--set", action="append", default=[], metavar="section.key=value")
    parser.add_argument("--extra-vars", action="append", default=[], help="what `-e` takes: JSON, or @FILE")
    parser.add_argument("--random-data", type=int, default=0, metavar="TOKENS", help="train on random ids")
    parser.add_argument("--vocabulary", type=int, default=248320, help="ids of the random data")
    parser.add_argument("--python", default=sys.executable, help="an interpreter with pyarrow and numpy")
    parser.add_argument("--ansible", default=str(Path(sys.executable).parent / "ansible-playbook"))
    parser.add_argument("--steps", type=enough_steps, default=300, help="steps before the run is stopped")
    parser.add_argument("--wipe", action="store_true", help="also make the cache anew at the end")
    parser.add_argument("--json", type=Path, required=True)
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
