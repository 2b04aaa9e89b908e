"""Effective values of a configuration: defaults filled in, values without effect removed."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, TypeVar

from dflash_trainer.config.schema import DataConfig, DrafterConfig, ObjectiveConfig
from dflash_trainer.config.target_shape import TargetShape
from dflash_trainer.errors import ConfigError
from dflash_trainer.loss.head import rows_per_chunk

S = TypeVar("S")

_TARGET_DEFAULTS = ("intermediate_size", "num_heads", "num_kv_heads", "head_dim", "rope_theta", "rms_norm_eps")


def section(kind: type[S], values: Mapping[str, Any]) -> S:
    """Build a section from a checkpoint's configuration; unknown keys of other versions are ignored."""
    known = {field.name for field in dataclasses.fields(kind)}  # type: ignore[arg-type]
    return kind(**{key: value for key, value in values.items() if key in known})


def effective(config: Mapping[str, Mapping[str, Any]], target: TargetShape) -> dict[str, dict[str, Any]]:
    """Return the sections of `config` (from Config.to_dict) with effective values; None: the value has no effect."""
    drafter = section(DrafterConfig, config["drafter"])
    objective = section(ObjectiveConfig, config["objective"])
    data = section(DataConfig, config["data"])
    values = {name: dict(keys) for name, keys in config.items()}
    values["drafter"] |= _drafter(drafter, target)
    values["objective"] |= _objective(objective, drafter.block_size) | _chunks(objective, data, drafter.block_size)
    return values


def _drafter(config: DrafterConfig, target: TargetShape) -> dict[str, Any]:
    layers = _captured(config, target)
    types = config.resolved_layer_types
    return {
        "layer_types": types,
        "sliding_window": config.sliding_window if "sliding_attention" in types else None,
        "num_captured": layers,
        "target_layer_ids": layers,
        **{key: getattr(config, key) or getattr(target, key) for key in _TARGET_DEFAULTS},
    }


def _captured(config: DrafterConfig, target: TargetShape) -> tuple[int, ...] | None:
    """Return the captured layers; None when this target does not have them, which its content hash reports."""
    try:
        return config.captured_layers(target.num_layers)
    except ConfigError:
        return None


def _objective(config: ObjectiveConfig, block: int) -> dict[str, Any]:
    decays = config.kind == "decay"
    return {"gamma": config.resolved_gamma(block) if decays else None, "alpha": None if decays else config.alpha}


def _chunks(config: ObjectiveConfig, data: DataConfig, block: int) -> dict[str, Any]:
    """Return the rows of logits per chunk for each bucket: another product size may round differently."""
    rows = (data.batch_size(bucket) * config.num_anchors * (block - 1) for bucket in data.buckets)
    return {"head_chunk": [rows_per_chunk(count, slots=block - 1, chunk=config.head_chunk) for count in rows]}
