"""Tensors of a target: looked up by name in their source, checked, and copied to the device."""

from __future__ import annotations

import json
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from dflash_trainer.errors import InputError
from dflash_trainer.target.delta_net import DeltaNetWeights
from dflash_trainer.target.layers import AttentionWeights, MlpWeights
from dflash_trainer.target.plan import ATTENTION_NAMES, DELTA_NET_NAMES, MLP_NAMES, TargetPlan

HEAD = "lm_head.weight"

Progress = Callable[[int, int], None]
"""(layers loaded, layers in total)"""


class TensorSource(Protocol):
    """Source of published tensors by name."""

    def names(self) -> list[str]:
        """Return the names of all tensors."""

    def load(self, name: str, device: torch.device, dtype: torch.dtype) -> Tensor:
        """Return a tensor on `device` in `dtype`."""


@dataclass(frozen=True)
class TargetWeights:
    """Embedding [V, D], head [V, D], final norm [D], and the two halves of every loaded layer."""

    embed: Tensor
    head: Tensor
    final_norm: Tensor
    layers: tuple[tuple[AttentionWeights | DeltaNetWeights, MlpWeights], ...]


class SafetensorsFolder:
    """Tensors in a folder of safetensors files, with or without an index."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.file_of = self._index()

    def _index(self) -> dict[str, Path]:
        index = self.folder / "model.safetensors.index.json"
        if index.is_file():
            try:
                table = json.loads(index.read_text(encoding="utf-8"))["weight_map"]
            except (OSError, ValueError, KeyError) as error:
                raise InputError(f"{index}: cannot be read ({error})", "download the weights again") from error
            return {name: self.folder / file for name, file in table.items()}
        found: dict[str, Path] = {}
        for file in sorted(self.folder.glob("*.safetensors")):
            found |= dict.fromkeys(self._open(file).keys(), file)
        if not found:
            raise InputError(f"target.path: no *.safetensors file in {self.folder}", "download the weights")
        return found

    def names(self) -> list[str]:
        """Return the names of all tensors."""
        return list(self.file_of)

    def load(self, name: str, device: torch.device, dtype: torch.dtype) -> Tensor:
        """Return a tensor on `device` in `dtype`."""
        tensor: Tensor = self._open(self.file_of[name]).get_tensor(name)
        return tensor.to(device=device, dtype=dtype)

    def _open(self, file: Path) -> safe_open:
        try:
            return safe_open(file, framework="pt")
        except (OSError, SafetensorError) as error:
            raise InputError(f"{file}: cannot be read ({error})", "download the weights again") from error


class StateDict:
    """Tensors that are already in memory."""

    def __init__(self, tensors: dict[str, Tensor]) -> None:
        self.tensors = tensors

    def names(self) -> list[str]:
        """Return the names of all tensors."""
        return list(self.tensors)

    def load(self, name: str, device: torch.device, dtype: torch.dtype) -> Tensor:
        """Return a tensor on `device` in `dtype`."""
        return self.tensors[name].to(device=device, dtype=dtype)


class RandomTensors:
    """Random weights: matrices with std 0.02, neutral norms; reproducible per tensor name and device type."""

    def __init__(self, plan: TargetPlan) -> None:
        hidden, vocab = plan.shape.hidden_size, plan.shape.vocab_size
        self.shapes: dict[str, tuple[int, ...]] = {
            "model.embed_tokens.weight": (vocab, hidden),
            "model.norm.weight": (hidden,),
        }
        if not plan.shape.tied:
            self.shapes["lm_head.weight"] = (vocab, hidden)
        for layer in range(plan.shape.num_layers):
            self.shapes |= {f"model.layers.{layer}.{name}": size for name, size in plan.layer_shapes(layer).items()}
        self.neutral_norm = 0.0 if plan.sizes.centred else 1.0

    def names(self) -> list[str]:
        """Return the names of all tensors."""
        return list(self.shapes)

    def load(self, name: str, device: torch.device, dtype: torch.dtype) -> Tensor:
        """Return a new random tensor on `device` in `dtype`."""
        tensor = torch.empty(self.shapes[name], device=device, dtype=dtype)
        if name.endswith("linear_attn.norm.weight"):
            return tensor.fill_(1.0)
        if len(self.shapes[name]) == 1 and not name.endswith(("A_log", "dt_bias")):
            return tensor.fill_(self.neutral_norm)
        generator = torch.Generator(device).manual_seed(zlib.crc32(name.encode()))
        if name.endswith("A_log"):
            return tensor.uniform_(0.0, 2.0, generator=generator)
        return tensor.normal_(0.0, 0.02, generator=generator)


def load_weights(
    source: TensorSource,
    plan: TargetPlan,
    *,
    layers: int,
    device: torch.device,
    dtype: torch.dtype,
    progress: Progress | None = None,
) -> TargetWeights:
    """Load embedding, head, final norm and the first `layers` layers.

    Raises:
        InputError: a tensor is missing, has another shape, or is not supported.
    """
    names = source.names()
    prefix, head_name = find_embedding_and_head(names)
    shape = plan.shape
    if not shape.tied and not head_name.endswith(HEAD):
        raise InputError(
            f"target.path: tensor {HEAD} is missing, and config.json does not set tie_word_embeddings",
            "download the weights again, or correct config.json",
        )
    outer = {
        prefix + "embed_tokens.weight": (shape.vocab_size, shape.hidden_size),
        prefix + "norm.weight": (shape.hidden_size,),
        head_name: (shape.vocab_size, shape.hidden_size),
    }
    known = frozenset(names)
    loaded = {name: _load(source, known, name, size, device, dtype) for name, size in outer.items()}
    loaded_layers = []
    for layer in range(layers):
        tensors = {
            name: _load(source, known, f"{prefix}layers.{layer}.{name}", size, device, dtype)
            for name, size in plan.layer_shapes(layer).items()
        }
        _check_no_extra_tensors(known, f"{prefix}layers.{layer}.", tensors)
        loaded_layers.append((_first_half(tensors), _second_half(tensors)))
        if progress:
            progress(layer + 1, layers)
    return TargetWeights(
        embed=loaded[prefix + "embed_tokens.weight"],
        head=loaded[head_name],
        final_norm=loaded[prefix + "norm.weight"],
        layers=tuple(loaded_layers),
    )


def find_embedding_and_head(names: list[str]) -> tuple[str, str]:
    """Return (prefix of the text model, name of the head); with tied weights the head is the embedding.

    Raises:
        InputError: the number of embeddings is not 1.
    """
    embeddings = [name for name in names if name.endswith("embed_tokens.weight") and not name.startswith("mtp.")]
    if len(embeddings) != 1:
        raise InputError(
            f"target.path: {len(embeddings)} tensor names end in embed_tokens.weight, expected 1",
            "use a Llama, Qwen3 or Qwen3.5/3.6 checkpoint",
        )
    prefix = embeddings[0].removesuffix("embed_tokens.weight")
    heads = [name for name in names if name.endswith(HEAD)]
    return prefix, heads[0] if heads else embeddings[0]


def _load(
    source: TensorSource,
    known: frozenset[str],
    name: str,
    size: tuple[int, ...],
    device: torch.device,
    dtype: torch.dtype,
) -> Tensor:
    if name not in known:
        raise InputError(f"target.path: tensor {name} is missing", "download the weights again, or correct config.json")
    tensor = source.load(name, device, dtype)
    if tuple(tensor.shape) != size:
        raise InputError(
            f"target.path: {name} has shape {tuple(tensor.shape)}, expected {size} from config.json",
            "download weights and config.json of the same model",
        )
    return tensor


def _check_no_extra_tensors(known: frozenset[str], prefix: str, used: dict[str, Tensor]) -> None:
    """Raise InputError for an unused tensor of a layer (a bias, an expert), which means an unsupported model."""
    extra = sorted(name for name in known if name.startswith(prefix) and name.removeprefix(prefix) not in used)
    extra = [name for name in extra if not name.endswith("rotary_emb.inv_freq")]
    if extra:
        raise InputError(
            f"target.path: {len(extra)} tensors of a layer are not supported, such as {extra[0]}",
            "use a Llama, Qwen3 or Qwen3.5/3.6 checkpoint without biases, experts or quantisation",
        )


def _first_half(tensors: dict[str, Tensor]) -> AttentionWeights | DeltaNetWeights:
    if DELTA_NET_NAMES["qkv"] in tensors:
        return DeltaNetWeights(**{field: tensors[name] for field, name in DELTA_NET_NAMES.items()})
    return AttentionWeights(**{field: tensors.get(name) for field, name in ATTENTION_NAMES.items()})  # type: ignore[arg-type]


def _second_half(tensors: dict[str, Tensor]) -> MlpWeights:
    return MlpWeights(**{field: tensors[name] for field, name in MLP_NAMES.items()})
