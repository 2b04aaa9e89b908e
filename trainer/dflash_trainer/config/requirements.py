"""Requirements of a configuration, computed without torch: workers, GPUs, paths, checkpoint size."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from dflash_trainer.config.schema import Config, DrafterConfig
from dflash_trainer.config.target_shape import TargetShape, locate, read_shape
from dflash_trainer.errors import ConfigError, InputError

_BYTES = {"float32": 4, "bfloat16": 2}


def run_requirements(config: Config) -> dict[str, Any]:
    """Return the requirements of a run, as `config --json` prints them.

    Without the target on this machine, checkpoint_bytes is None, and so is target_path for a package.

    Raises:
        ConfigError: the configuration does not fit the target.
    """
    shape, path = check_target(config)
    gpus = [device for device in config.devices if device != "cpu"]
    return {
        "target_workers": len(config.target.devices),
        "drafter_workers": len(config.drafter.devices),
        "devices": list(config.devices),
        "gpus": len(gpus),
        "target_path": path,
        "data_path": config.data.path or None,
        "eval_path": config.data.eval_path or None,
        "checkpoint_bytes": checkpoint_bytes(config, shape) if shape is not None else None,
    }


def check_target(config: Config) -> tuple[TargetShape | None, str | None]:
    """Check the configuration against the target, if it is on this machine.

    Returns:
        The target's shape (None without the target) and its path (None for a package that is not installed).

    Raises:
        ConfigError: the configuration does not fit the target.
    """
    try:
        location = locate(config.target.path)
        shape = read_shape(location)
    except InputError:
        has_scheme = config.target.path.startswith(("package:", "random:"))
        return None, None if has_scheme else config.target.path
    check_against_target(config, shape)
    return shape, str(location.path) if location.path else config.target.path


def check_against_target(config: Config, shape: TargetShape) -> None:
    """Check the values that depend on the target. Raises ConfigError."""
    check_drafter(config.drafter, shape)
    longest = config.data.buckets[-1]
    if shape.max_positions and longest > shape.max_positions:
        reason = f"the target supports {shape.max_positions} positions"
        raise ConfigError("data.buckets", longest, reason, "use shorter buckets")


def check_drafter(drafter: DrafterConfig, shape: TargetShape) -> None:
    """Check the drafter section, completed with the target's values. Raises ConfigError."""
    drafter.captured_layers(shape.num_layers)
    mask = drafter.mask_token_id
    if mask >= shape.vocab_size:
        reason = f"the target's embedding has {shape.vocab_size} rows"
        raise ConfigError("drafter.mask_token_id", mask, reason, "use a reserved id below that number")
    if mask == shape.pad_token_id:
        raise ConfigError("drafter.mask_token_id", mask, "it is the pad token of the target", "use another reserved id")
    heads, kv_heads = drafter.num_heads or shape.num_heads, drafter.num_kv_heads or shape.num_kv_heads
    if heads % kv_heads:
        reason = f"does not divide {heads} heads"
        raise ConfigError("drafter.num_kv_heads", kv_heads, reason, "set num_heads and num_kv_heads in [drafter]")


def count_parameters(config: Config, shape: TargetShape) -> int:
    """Return the number of weights in the drafter: fc, two norms and eleven tensors per layer."""
    drafter = config.drafter
    hidden = shape.hidden_size
    heads, kv_heads = drafter.num_heads or shape.num_heads, drafter.num_kv_heads or shape.num_kv_heads
    head_dim = drafter.head_dim or shape.head_dim
    intermediate = drafter.intermediate_size or shape.intermediate_size
    captured = len(drafter.captured_layers(shape.num_layers))
    attention = 2 * hidden * head_dim * (heads + kv_heads) + 2 * head_dim
    layer = attention + 3 * hidden * intermediate + 2 * hidden
    return captured * hidden * hidden + 2 * hidden + drafter.num_layers * layer


def checkpoint_bytes(config: Config, shape: TargetShape) -> int:
    """Return the size of a checkpoint in bytes: weights, fp32 masters and optimizer moments."""
    moments = 1 if config.optimizer.kind == "muon" else 2
    state = 4 if config.optimizer.kind == "muon" else _BYTES[config.optimizer.state_dtype]
    each = _BYTES[config.drafter.dtype] + 4 + moments * state
    return count_parameters(config, shape) * each + (1 << 20)


def check_space(folder: Path, needed: int) -> None:
    """Raise InputError when the filesystem of `folder` has less than `needed` bytes free."""
    existing = next(path for path in (folder, *folder.parents) if path.exists())
    stats = os.statvfs(existing)
    free = stats.f_bavail * stats.f_frsize
    if free < needed:
        raise InputError(
            f"{folder}: {free / 1e9:.2f} GB free, but one checkpoint takes {needed / 1e9:.2f} GB",
            "free disk space, or choose another --run-dir",
            name="disk_full",
        )
