"""Load the target from `target.path` onto one device, without device_map."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from dflash_trainer.config.target_shape import TargetLocation, locate, read_shape
from dflash_trainer.errors import InputError
from dflash_trainer.target.fast_path import delta_rule_for
from dflash_trainer.target.forward import CaptureForward
from dflash_trainer.target.plan import TargetPlan, plan_from_config, plan_from_shape
from dflash_trainer.target.target import Target
from dflash_trainer.target.weights import (
    Progress,
    RandomTensors,
    SafetensorsFolder,
    StateDict,
    TensorSource,
    load_weights,
)

if TYPE_CHECKING:
    from dflash_trainer.config.schema import Config


def load_target(
    config: Config, device: torch.device | str, *, all_layers: bool = False, progress: Progress | None = None
) -> Target:
    """Load the target on `device`.

    Args:
        config: the run's configuration.
        device: CPU or a GPU.
        all_layers: load every layer, which decoding needs, instead of only those up to the last captured layer.
        progress: called after each layer with (layers loaded, layers in total).

    Raises:
        InputError: weights are missing, damaged, or of an unsupported model.
        ConfigError: a captured layer does not exist in the target, or fused kernels are missing.
    """
    device = torch.device(device)
    if device.type == "cuda":
        torch.cuda.set_device(device)
    location = locate(config.target.path)
    plan, source = _open(location)
    captured = config.drafter.captured_layers(plan.shape.num_layers)
    layers = plan.shape.num_layers if all_layers else captured[-1] + 1
    dtype = getattr(torch, config.target.dtype)
    needs_rule = "delta_net" in plan.kinds
    rule = delta_rule_for(device if needs_rule else torch.device("cpu"), config.target.fast_path)
    weights = load_weights(source, plan, layers=layers, device=device, dtype=dtype, progress=progress)
    compiled = config.runtime.compile and device.type == "cuda"
    forward = CaptureForward(plan, weights, captured, rule, compiled=compiled)
    graphed = config.target.cuda_graphs and device.type == "cuda"
    return Target(forward, device, dtype, partial(_tokenizer, location), graphed=graphed)


def _open(location: TargetLocation) -> tuple[TargetPlan, TensorSource]:
    shape = read_shape(location)
    if location.kind == "random":
        plan = plan_from_shape(shape)
        return plan, RandomTensors(plan)
    assert location.path is not None
    if location.kind == "gguf":
        config, tensors = _read_gguf(location.path)
        return plan_from_config(shape, config), StateDict(tensors)
    return plan_from_config(shape, _text_config(location.path)), SafetensorsFolder(location.path)


def _text_config(folder: Path) -> Any:
    from transformers import AutoConfig

    return _reading(folder, lambda: AutoConfig.from_pretrained(folder).get_text_config())


def _read_gguf(file: Path) -> tuple[Any, dict[str, torch.Tensor]]:
    """Dequantise a GGUF file with transformers; returns (configuration, fp32 tensors)."""
    from transformers import AutoModelForCausalLM

    model = _reading(
        file,
        lambda: AutoModelForCausalLM.from_pretrained(file.parent, gguf_file=file.name, dtype=torch.float32),
    )
    return model.config.get_text_config(), dict(model.state_dict())


def _tokenizer(location: TargetLocation) -> Any:
    from transformers import AutoTokenizer

    if location.path is None:
        raise InputError(
            f"target.path = 'random:{location.random_shape}': random weights have no tokenizer", "use published weights"
        )
    path = location.path
    if location.kind == "gguf":
        return _reading(path, lambda: AutoTokenizer.from_pretrained(path.parent, gguf_file=path.name))
    return _reading(path, lambda: AutoTokenizer.from_pretrained(path))


def _reading(path: Path, read: Callable[[], Any]) -> Any:
    try:
        return read()
    except (OSError, ValueError, KeyError, ImportError, RuntimeError) as error:
        raise InputError(f"target.path: {path} cannot be read ({error})", "download the weights again") from error
