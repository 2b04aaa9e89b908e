"""What the values of a configuration come to: defaults filled in, and nothing that another value switches off."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, TypeVar

from dflash_trainer.config.schema import DataConfig, DrafterConfig, ObjectiveConfig
from dflash_trainer.config.target_shape import TargetShape
from dflash_trainer.errors import ConfigError
from dflash_trainer.loss.head import rows_per_chunk

S = TypeVar("S")

_OF_TARGET = ("intermediate_size", "num_heads", "num_kv_heads", "head_dim", "rope_theta", "rms_norm_eps")


def section(kind: type[S], values: Mapping[str, Any]) -> S:
    """A section of a checkpoint's configuration; keys of other versions are left out."""
    known = {field.name for field in dataclasses.fields(kind)}  # type: ignore[arg-type]
    return kind(**{key: value for key, value in values.items() if key in known})


def effective(config: Mapping[str, Mapping[str, Any]], target: TargetShape) -> dict[str, dict[str, Any]]:
    """The sections of `config` (as Config.to_dict gives them) by what they come to; None has no effect at all."""
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
        **{key: getattr(config, key) or getattr(target, key) for key in _OF_TARGET},
    }


def _captured(config: DrafterConfig, target: TargetShape) -> tuple[int, ...] | None:
    """None for layers that this target lacks: it is another one than theirs, which is told by its weights."""
    try:
        return config.captured_layers(target.num_layers)
    except ConfigError:
        return None


def _objective(config: ObjectiveConfig, block: int) -> dict[str, Any]:
    decays = config.kind == "decay"
    return {"gamma": config.resolved_gamma(block) if decays else None, "alpha": None if decays else config.alpha}


def _chunks(config: ObjectiveConfig, data: DataConfig, block: int) -> dict[str, Any]:
    """Rows of logits made at once, a bucket: a product of another size may round otherwise."""
    rows = (data.batch_size(bucket) * config.num_anchors * (block - 1) for bucket in data.buckets)
    return {"head_chunk": [rows_per_chunk(count, slots=block - 1, chunk=config.head_chunk) for count in rows]}
