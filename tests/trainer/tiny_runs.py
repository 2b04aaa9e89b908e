"""Tiny real runs: a random Llama-shaped target, a dataset of random ids, the real trainer on CPU."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
from dflash_trainer.config.load import load_config
from dflash_trainer.config.schema import Config
from dflash_trainer.data.arrow import write_samples
from dflash_trainer.errors import ExitCode

REPO = Path(__file__).resolve().parents[2]

CONFIG = """
[target]
path = "random:tiny"
dtype = "float32"
devices = ["cpu"]

[drafter]
devices = ["cpu"]
dtype = "float32"
num_layers = 2
sliding_window = 8
block_size = 4
num_captured = 2
mask_token_id = 255

[objective]
num_anchors = 4
noise_std = 0.01

[data]
path = "train"
eval_path = "eval"
buckets = [16, 32]
batch_tokens = 64
prefetch = 2

[optimizer]
lr = 1e-3
epochs = 100
max_steps = 40

[runtime]
compile = false
queue_depth = 2
nan_limit = 3

[checkpoint]
every_steps = 5
keep = 3

[logging]
every_steps = 1
"""


def write_dataset(folder: Path, *, samples: int, seed: int, largest: int = 250) -> None:
    """Write `samples` rows of 9 to 40 ids below `largest` into two Arrow files; the answer starts at the third id."""
    folder.mkdir(parents=True)
    random = np.random.default_rng(seed)
    rows = []
    for number in range(samples):
        length = int(random.integers(9, 41))
        ids = random.integers(0, largest, length).tolist()
        rows.append((f"s{number}", ids, [0, 0] + [1] * (length - 2)))
    half = samples // 2
    write_samples(folder / "data-00000-of-00002.arrow", rows[:half])
    write_samples(folder / "data-00001-of-00002.arrow", rows[half:])


class TinyRun:
    """Folder with config.toml, train/, eval/ and the runs of a test."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.config_file = folder / "config.toml"
        self.config_file.write_text(CONFIG)

    def config(self, *overrides: str) -> Config:
        """Return the configuration with overrides."""
        return load_config(self.config_file, overrides)

    def train(self, name: str, *overrides: str, resume_from: Path | None = None) -> ExitCode:
        """Train in this process, into the run folder `name`."""
        from dflash_trainer.training.train import TrainOptions, train

        return train(self.config(*overrides), TrainOptions(self.folder / name, resume_from))

    def command(self, name: str, *overrides: str, subcommand: str = "train") -> list[str]:
        """Return the command line that runs the trainer in a separate process."""
        sets = [argument for override in overrides for argument in ("--set", override)]
        run = ["--run-dir", str(self.folder / name)] if subcommand == "train" else []
        return [sys.executable, "-m", "dflash_trainer", subcommand, "--config", str(self.config_file), *sets, *run]

    def start(self, name: str, *overrides: str, env: dict[str, str] | None = None) -> subprocess.Popen[str]:
        """Start a run in a separate process that logs to NAME.log."""
        log = (self.folder / f"{name}.log").open("a")
        with log:
            return subprocess.Popen(
                self.command(name, *overrides),
                stdout=log,
                stderr=subprocess.STDOUT,
                stdin=subprocess.DEVNULL,
                env=process_environment(env),
                text=True,
            )

    def log(self, name: str) -> str:
        """Return the output of a started run."""
        return (self.folder / f"{name}.log").read_text()

    def rows(self, name: str) -> list[dict[str, Any]]:
        """Return the rows of metrics.jsonl of a run."""
        file = self.folder / name / "metrics.jsonl"
        return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []

    def failure(self, name: str) -> dict[str, Any]:
        """Return failure.json of a run."""
        values: dict[str, Any] = json.loads((self.folder / name / "failure.json").read_text())
        return values

    def state(self, name: str) -> dict[str, Any]:
        """Return state.json of a run."""
        values: dict[str, Any] = json.loads((self.folder / name / "state.json").read_text())
        return values

    def wait_for_step(self, name: str, step: int, process: subprocess.Popen[str], timeout: float = 600.0) -> None:
        """Wait until metrics.jsonl has `step`; fail with the log if the process ends first."""
        deadline = time.monotonic() + timeout
        while time.monotonic() < deadline:
            if any(line.startswith(f'{{"step": {step},') for line in self._lines(name)):
                return
            if process.poll() is not None:
                raise AssertionError(f"ended with {process.returncode} before step {step}:\n{self.log(name)}")
            time.sleep(0.005)
        process.send_signal(signal.SIGKILL)
        raise AssertionError(f"step {step} was not reached:\n{self.log(name)}")

    def _lines(self, name: str) -> list[str]:
        file = self.folder / name / "metrics.jsonl"
        return file.read_text().splitlines() if file.exists() else []


def process_environment(extra: dict[str, str] | None = None) -> dict[str, str]:
    """Return a minimal environment for a trainer process."""
    kept = {name: os.environ[name] for name in ("PATH", "HOME", "TMPDIR") if name in os.environ}
    return kept | {"PYTHONPATH": str(REPO / "trainer"), "OMP_NUM_THREADS": "1"} | (extra or {})


def step_results(rows: list[dict[str, Any]]) -> list[tuple[int, float, float, list[int]]]:
    """Return step, loss, gradient norm and samples of each row: equal bit for bit in two identical runs."""
    return [(row["step"], row["loss"], row["grad_norm"], row["samples"]) for row in rows]
