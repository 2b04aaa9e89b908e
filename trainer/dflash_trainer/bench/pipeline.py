"""Benchmark of the whole pipeline: the real training loop on random tokens of full length."""

from __future__ import annotations

import dataclasses
import json
import statistics
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from dflash_trainer import compilation
from dflash_trainer.bench.measure import machine, time_call
from dflash_trainer.config.target_shape import locate, read_shape
from dflash_trainer.data.arrow import write_samples
from dflash_trainer.pipeline.node_group import NodeGroup
from dflash_trainer.pipeline.pipeline import Pipeline, open_dataset
from dflash_trainer.records.metrics import MetricsFile
from dflash_trainer.records.phase import RunState
from dflash_trainer.target import Target, load_target
from dflash_trainer.training.position import Position
from dflash_trainer.training.stop_signals import StopSignals
from dflash_trainer.training.trainer import Records, Trainer

if TYPE_CHECKING:
    from dflash_trainer.config.schema import Config

_IGNORED_STEPS = 8
"""Steps that are not measured: the queue fills and the clocks settle."""


def bench_pipeline(config: Config, repeats: int) -> dict[str, Any]:
    """Compare the pipeline's step time with its slower stage on its own. Writes no checkpoint."""
    with tempfile.TemporaryDirectory(prefix="dflash-bench-") as folder, ExitStack() as closing:
        config = _with_random_data(config, Path(folder), repeats + _IGNORED_STEPS)
        compilation.install_guards()
        started = time.perf_counter()
        targets = [load_target(config, device) for device in config.target.devices]
        pipeline = Pipeline(config, targets, NodeGroup())
        closing.callback(pipeline.close)
        loaded = time.perf_counter()
        pipeline.warm(lambda line: print(line, flush=True))
        warmed = time.perf_counter()
        alone = _target_alone(config, targets[0])
        _train(config, pipeline, Path(folder))
        rows = [json.loads(line) for line in (Path(folder) / "metrics.jsonl").read_text().splitlines()]
    return _figures(config, rows[_IGNORED_STEPS:], alone) | {
        "load_s": round(loaded - started, 2),
        "warmup_s": round(warmed - loaded, 2),
        "cache": compilation.cache_counters(),
    }


def _train(config: Config, pipeline: Pipeline, folder: Path) -> None:
    dataset = open_dataset(config)
    metrics = MetricsFile(folder / "metrics.jsonl")
    records = Records(state=RunState(folder), metrics=metrics, trackers=[], writer=None, uploader=None)
    with StopSignals() as stop:
        stop.finish_steps()
        Trainer(config, pipeline, dataset, Position(), records, stop).run()
    metrics.close()


def _target_alone(config: Config, target: Target) -> dict[str, float]:
    """Time the first target's forward pass of the largest bucket on its own, at steady clocks."""
    bucket = config.data.buckets[-1]
    ids = torch.randint(target.shape.vocab_size, (config.data.batch_size(bucket), bucket))
    timing = time_call(lambda: target.capture(ids), target.device, repeats=20, warmups=20)
    return {"ms": timing.total_ms, "host_ms": timing.host_ms}


def _figures(config: Config, rows: list[dict[str, Any]], alone: dict[str, float]) -> dict[str, Any]:
    steps = len(rows)
    seconds = (rows[-1]["time"] - rows[0]["time"]) / max(1, steps - 1)
    batches = len(config.drafter.devices) * config.optimizer.accumulate
    tokens = batches * config.data.buckets[-1] * config.data.batch_size(config.data.buckets[-1])
    drafter = statistics.median(row["drafter_ms"] for row in rows)
    target = alone["ms"] * batches / len(config.target.devices)
    slower = max(drafter, target)
    gpus = {gpu["device"]: [row["gpus"][index] for row in rows] for index, gpu in enumerate(rows[0]["gpus"])}
    return {
        "stage": "pipeline",
        **machine(torch.device(config.drafter.devices[0])),
        "targets": len(config.target.devices),
        "drafters": len(config.drafter.devices),
        "steps": steps,
        "step_ms": round(seconds * 1e3, 2),
        "tokens_per_second": round(tokens / seconds, 1),
        "target_alone_ms": round(target, 2),
        "target_host_ms": alone["host_ms"],
        "drafter_busy_ms": round(drafter, 2),
        "slower_stage": "drafter" if drafter > target else "target",
        "part_of_slower_stage": round(slower / (seconds * 1e3), 4),
        "recompiles": rows[-1]["recompiles"],
        "device_allocations": {name: all_[-1]["device_allocations"] for name, all_ in gpus.items()},
        "device_frees": {name: all_[-1]["device_frees"] for name, all_ in gpus.items()},
        "reserved_bytes": {name: [all_[0]["reserved"], all_[-1]["reserved"]] for name, all_ in gpus.items()},
        "reserved_flat": all(len({gpu["reserved"] for gpu in all_}) == 1 for all_ in gpus.values()),
        "loss": [rows[0]["loss"], rows[-1]["loss"]],
        "skipped_batches": rows[-1]["skipped_batches"],
    }


def _with_random_data(config: Config, folder: Path, steps: int) -> Config:
    """Return `config` with a dataset of random tokens; each sample fills the largest bucket."""
    length = config.data.buckets[-1]
    vocab = read_shape(locate(config.target.path)).vocab_size
    random = np.random.default_rng(0)
    mask = [0] * (length // 8) + [1] * (length - length // 8)
    rows = ((f"random-{number}", random.integers(0, vocab, length).tolist(), mask) for number in range(64))
    (folder / "data").mkdir()
    write_samples(folder / "data" / "random.arrow", rows)
    return dataclasses.replace(
        config,
        data=dataclasses.replace(config.data, path=str(folder / "data"), eval_path=""),
        optimizer=dataclasses.replace(config.optimizer, max_steps=steps, epochs=steps),
        evaluation=dataclasses.replace(config.evaluation, every_steps=0),
        logging=dataclasses.replace(config.logging, every_steps=20),
    )
