"""Build a drafter from the configuration, with random or published initial weights."""

from __future__ import annotations

import os
import zlib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file
from torch import nn

from dflash_trainer.errors import InputError
from dflash_trainer.model.drafter import Drafter
from dflash_trainer.model.shape import drafter_shape

if TYPE_CHECKING:
    from dflash_trainer.config.schema import Config
    from dflash_trainer.config.target_shape import TargetShape

_INITIAL_STD = 0.02


def build_drafter(config: Config, target_shape: TargetShape) -> Drafter:
    """Return a drafter on the CPU in fp32, with weights drawn from runtime.seed or read from drafter.init_from.

    Raises:
        ConfigError: the drafter section does not fit the target.
        InputError: drafter.init_from cannot be read or has other shapes.
    """
    drafter = _drafter_on_meta(config, target_shape)
    drafter.to_empty(device="cpu")
    if config.drafter.init_from:
        load_published(drafter, Path(config.drafter.init_from))
    else:
        initialise(drafter, config.runtime.seed)
    return drafter


@torch.no_grad()
def initialise(drafter: Drafter, seed: int) -> None:
    """Fill matrices from a normal distribution with std 0.02 and norms with 1; reproducible across machines.

    Each matrix has its own generator, so the matrices can be filled in parallel: a large drafter has 1.7e9 weights.
    """

    def fill(named: tuple[str, nn.Parameter]) -> None:
        name, parameter = named
        generator = torch.Generator().manual_seed(seed << 32 | zlib.crc32(name.encode()))
        with torch.no_grad():
            parameter.normal_(0.0, _INITIAL_STD, generator=generator)

    for parameter in drafter.parameters():
        if parameter.ndim != 2:
            parameter.fill_(1.0)
    with ThreadPoolExecutor(len(os.sched_getaffinity(0)), "initial-weights") as threads:
        list(threads.map(fill, ((name, p) for name, p in drafter.named_parameters() if p.ndim == 2)))


def check_init_from(config: Config, target_shape: TargetShape) -> None:
    """Check the names and shapes in drafter.init_from without loading its weights. Raises InputError."""
    if config.drafter.init_from:
        _published_file(_drafter_on_meta(config, target_shape), Path(config.drafter.init_from))


def load_published(drafter: Drafter, folder: Path) -> None:
    """Load folder/model.safetensors into `drafter`; every name and shape must match. Raises InputError."""
    drafter.load_state_dict(load_file(_published_file(drafter, folder)))


def _drafter_on_meta(config: Config, target_shape: TargetShape) -> Drafter:
    """Return a drafter on the meta device, which skips PyTorch's slow default initialisation."""
    with torch.device("meta"):
        return Drafter(
            drafter_shape(config.drafter, target_shape),
            compiled=config.runtime.compile,
            checkpointed=config.runtime.gradient_checkpointing,
        )


def _published_file(drafter: Drafter, folder: Path) -> Path:
    """Return the weights file after checking its names and shapes against `drafter`. Raises InputError."""
    file = folder if folder.suffix == ".safetensors" else folder / "model.safetensors"
    try:
        with safe_open(file, framework="pt") as header:
            found = {name: tuple(header.get_slice(name).get_shape()) for name in header.keys()}  # noqa: SIM118
    except (OSError, SafetensorError) as error:
        raise InputError(
            f"drafter.init_from: {file} cannot be read ({error})", "give the folder of a published drafter"
        ) from error
    expected = {name: tuple(value.shape) for name, value in drafter.state_dict().items()}
    wrong = sorted(name for name in expected.keys() | found.keys() if expected.get(name) != found.get(name))
    if wrong:
        name = wrong[0]
        raise InputError(
            f"drafter.init_from: {file} does not match the configuration: {len(wrong)} tensors differ; "
            f"{name} has shape {found.get(name)}, expected {expected.get(name)}",
            "set the [drafter] section to the published shape",
        )
    return file
