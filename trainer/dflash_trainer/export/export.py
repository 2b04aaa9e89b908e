"""Write a drafter in the published layout: to a staging folder, verified, then renamed."""

from __future__ import annotations

import os
import shutil
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from dflash_trainer.checkpoint.tensors import write_tensors
from dflash_trainer.checkpoint.trained_drafter import TrainedDrafter
from dflash_trainer.config.target_shape import locate, read_shape
from dflash_trainer.errors import InputError
from dflash_trainer.export.check import check_export
from dflash_trainer.export.config_json import config_json
from dflash_trainer.files import sync_folder, write_json
from dflash_trainer.model import build_drafter
from dflash_trainer.model.shape import drafter_shape

if TYPE_CHECKING:
    from dflash_trainer.config.schema import Config


@dataclass(frozen=True)
class Exported:
    """Summary of an export."""

    folder: Path
    tensors: int
    parameters: int
    bytes: int


def export_drafter(config: Config, trained: TrainedDrafter, output: Path, dtype: str) -> Exported:
    """Write config.json and model.safetensors to `output`, which must not exist.

    Only the target's shape is needed, not its weights.

    Raises:
        InputError: the weights do not fit the configuration, hold NaN or Inf, or read back differently.
    """
    if output.exists():
        raise InputError(f"--output = {str(output)!r}: exists already", "remove it or choose another folder")
    target = read_shape(locate(config.target.path))
    tensors = _tensors(config, trained, dtype)
    values = config_json(drafter_shape(config.drafter, target), dtype)
    staging = output.with_name(f".{output.name}.writing-{os.getpid()}")
    staging.mkdir(parents=True)
    try:
        write_tensors(staging / "model.safetensors", tensors)
        write_json(staging / "config.json", values)
        check_export(staging, values, tensors)
        sync_folder(staging)
        staging.rename(output)
    except BaseException:
        shutil.rmtree(staging, ignore_errors=True)
        raise
    sync_folder(output.parent)
    size = sum(file.stat().st_size for file in output.iterdir())
    return Exported(output, len(tensors), sum(t.numel() for t in tensors.values()), size)


def _tensors(config: Config, trained: TrainedDrafter, dtype: str) -> dict[str, Tensor]:
    """Return the drafter's tensors by published name, in `dtype`, on the CPU."""
    from_trained = replace(config, drafter=replace(config.drafter, init_from=str(trained.weights)))
    drafter = build_drafter(from_trained, read_shape(locate(config.target.path)))
    tensors = {name: value.detach().to(getattr(torch, dtype)) for name, value in drafter.state_dict().items()}
    broken = [name for name, value in tensors.items() if not torch.isfinite(value).all()]
    if broken:
        raise InputError(
            f"{trained.weights}: {len(broken)} tensors hold NaN or Inf, such as {broken[0]}",
            "export an earlier checkpoint",
        )
    return tensors
