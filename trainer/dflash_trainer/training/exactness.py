"""Exact resume: everything that must be equal so that a resumed run matches an uninterrupted one bit for bit."""

from __future__ import annotations

import json
from typing import Any

import torch

from dflash_trainer.config.schema import OptimizerConfig
from dflash_trainer.config.target_shape import TargetShape
from dflash_trainer.optim.schedule import learning_rate, total_steps
from dflash_trainer.pipeline.pipeline import Dataset, Pipeline
from dflash_trainer.training.effective_config import effective, section

_WITHOUT_EFFECT = {
    "target": ("path", "devices", "fast_path", "cuda_graphs"),
    "drafter": ("devices", "init_from"),
    "data": ("path", "eval_path", "prefetch"),
    "optimizer": ("lr", "schedule", "warmup_ratio", "decay_ratio", "epochs", "max_steps"),
    "runtime": ("gradient_checkpointing", "queue_depth", "nan_limit"),
}
"""Keys without effect on a resumed run, or whose effect is compared directly (weights, samples, learning rates)."""
_LOADED = ("target.dtype", "drafter.num_captured", "drafter.target_layer_ids")
"""Keys that select the target's loaded weights and their dtype."""
_SECTIONS = ("target", "drafter", "objective", "data", "optimizer", "runtime")
_FINGERPRINT_KEYS = {
    "target": "content of target.path",
    "dataset": "content of data.path",
    "nodes": "nodes",
    "drafter_devices": "drafter devices",
    "target_devices": "target devices",
    "torch": "torch",
}


def run_fingerprint(pipeline: Pipeline, dataset: Dataset) -> dict[str, Any]:
    """Return everything that determines the results of a run, as trainer.json stores it."""
    config = pipeline.config
    per_epoch, per_step = dataset.train_plan.batches_per_epoch, pipeline.shape.batches_per_step
    return {
        "total_steps": total_steps(per_epoch, per_step, config.optimizer),
        "target": pipeline.targets[0].content_hash,
        "dataset": dataset.train.fingerprint,
        "nodes": pipeline.nodes.world_size,
        "drafter_devices": [_device_name(device) for device in config.drafter.devices],
        "target_devices": sorted({_device_name(device) for device in config.target.devices}),
        "torch": torch.__version__,
        "config": config.to_dict(),
    }


def differences(saved: dict[str, Any], now: dict[str, Any], target: TargetShape, *, step: int) -> list[str]:
    """Return the changes since the checkpoint of `step` that make its resume inexact.

    A value that the checkpoint does not record counts as unchanged.
    """
    changed = _config_differences(saved["config"], now["config"], target)
    found = [f"{name} {change}" for name, change in changed.items()]
    found += _rate_differences(saved, now, step)
    return found + [
        f"{name} {_change(saved.get(key), now[key])}"
        for key, name in _FINGERPRINT_KEYS.items()
        if not _same(saved.get(key), now[key]) and not (key == "target" and changed.keys() & {*_LOADED})
    ]


def _config_differences(saved: dict[str, Any], now: dict[str, Any], target: TargetShape) -> dict[str, str]:
    """Return the changes by key, for keys whose effective value differs."""
    resolved = effective(saved, target), effective(now, target)
    return {
        f"{name}.{key}": _change(before, after)
        for name in _SECTIONS
        for key, after in now[name].items()
        if key not in _WITHOUT_EFFECT.get(name, ())
        and not _same(before := saved.get(name, {}).get(key), after)
        and not _same(*(side[name][key] for side in resolved))
    }


def _rate_differences(saved: dict[str, Any], now: dict[str, Any], step: int) -> list[str]:
    """Return the keys that change a learning rate, with the first future step that differs, else the first past one."""
    before, after = (section(OptimizerConfig, side["config"]["optimizer"]) for side in (saved, now))
    totals = saved["total_steps"], now["total_steps"]
    for number in (*range(step + 1, min(totals) + 1), *range(1, min(step, *totals) + 1)):
        rates = learning_rate(number, totals[0], before), learning_rate(number, totals[1], after)
        if rates[0] != rates[1]:
            break
    else:
        return []
    changed = {f"optimizer.{key}": (getattr(before, key), getattr(after, key)) for key in _WITHOUT_EFFECT["optimizer"]}
    named = [f"{key} {_change(*values)}" for key, values in changed.items() if values[0] != values[1]]
    if totals[0] != totals[1]:
        named.append(f"steps of the run {_change(*totals)}")
    return [f"{', '.join(named)} (learning rate of step {number}: {rates[0]:.3g} -> {rates[1]:.3g})"]


def _same(before: Any, after: Any) -> bool:
    return None in (before, after) or json.dumps(before) == json.dumps(after)


def _change(before: Any, after: Any) -> str:
    return f"{json.dumps(before)} -> {json.dumps(after)}"


def _device_name(device: str) -> str:
    return device if device == "cpu" else torch.cuda.get_device_name(device)
