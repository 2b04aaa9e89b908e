"""Location and sizes of a target, from headers only: without torch and without loading weights.

`locate` resolves `target.path` to files; `read_shape` reads config.json, a GGUF header or a named random shape.
"""

from __future__ import annotations

import importlib.util
import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from dflash_trainer.config.gguf_header import read_gguf_header
from dflash_trainer.errors import ConfigError, InputError

Family = Literal["llama", "qwen3", "qwen3_5"]


@dataclass(frozen=True, kw_only=True)
class TargetShape:
    """Sizes of a target's text model."""

    family: Family
    hidden_size: int
    num_layers: int
    intermediate_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    vocab_size: int
    rope_theta: float
    rms_norm_eps: float
    max_positions: int = 0
    """Longest supported sequence; 0: unknown."""
    tied: bool = False
    """True when the output head is the embedding."""
    pad_token_id: int | None = None
    """Pad token of the target; None: unknown."""


_TINY = TargetShape(
    family="llama",
    hidden_size=64,
    num_layers=6,
    intermediate_size=128,
    num_heads=4,
    num_kv_heads=2,
    head_dim=16,
    vocab_size=256,
    rope_theta=1e4,
    rms_norm_eps=1e-6,
    max_positions=4096,
)
RANDOM_SHAPES: dict[str, TargetShape] = {
    "tiny": _TINY,
    "qwen3-tiny": replace(_TINY, family="qwen3"),
    "qwen3.6-tiny": replace(_TINY, family="qwen3_5", num_layers=8),
    "smollm2-135m": TargetShape(
        family="llama",
        hidden_size=576,
        num_layers=30,
        intermediate_size=1536,
        num_heads=9,
        num_kv_heads=3,
        head_dim=64,
        vocab_size=49152,
        rope_theta=1e5,
        rms_norm_eps=1e-5,
        max_positions=8192,
        tied=True,
    ),
    "qwen3-8b": TargetShape(
        family="qwen3",
        hidden_size=4096,
        num_layers=36,
        intermediate_size=12288,
        num_heads=32,
        num_kv_heads=8,
        head_dim=128,
        vocab_size=151936,
        rope_theta=1e6,
        rms_norm_eps=1e-6,
        max_positions=40960,
    ),
    "qwen3.6-27b": TargetShape(
        family="qwen3_5",
        hidden_size=5120,
        num_layers=64,
        intermediate_size=17408,
        num_heads=24,
        num_kv_heads=4,
        head_dim=256,
        vocab_size=248320,
        rope_theta=1e7,
        rms_norm_eps=1e-6,
        max_positions=262144,
    ),
}
"""Shapes for `random:NAME`, a target with random weights for benchmarks and tests."""

_FAMILIES: dict[str, Family] = {
    "llama": "llama",
    "qwen3": "qwen3",
    "qwen3_5": "qwen3_5",
    "qwen3_5_text": "qwen3_5",
    "qwen3_6": "qwen3_5",
    "qwen3_6_text": "qwen3_5",
}


@dataclass(frozen=True)
class TargetLocation:
    """Location of the weights: a folder, a GGUF file or the name of a random shape."""

    kind: Literal["folder", "gguf", "random"]
    path: Path | None
    random_shape: str = ""


def locate(target_path: str) -> TargetLocation:
    """Resolve `target.path`, without importing the package of `package:NAME`.

    Raises:
        ConfigError: the random shape does not exist.
        InputError: no weights were found at that path.
    """
    scheme, colon, name = target_path.partition(":")
    if colon and scheme == "random":
        if name not in RANDOM_SHAPES:
            remedy = "use random: with one of " + ", ".join(RANDOM_SHAPES)
            raise ConfigError("target.path", target_path, "unknown random shape", remedy)
        return TargetLocation("random", None, name)
    if colon and scheme == "package":
        return _classify(_weights_in_package(name), target_path)
    return _classify(Path(target_path), target_path)


def read_shape(location: TargetLocation) -> TargetShape:
    """Return the sizes of the target at `location`. Raises InputError when they cannot be read."""
    if location.kind == "random":
        return RANDOM_SHAPES[location.random_shape]
    assert location.path is not None
    if location.kind == "gguf":
        return _shape_of_gguf(location.path)
    return _shape_of_folder(location.path)


def _classify(path: Path, target_path: str) -> TargetLocation:
    if path.is_dir() and (path / "config.json").is_file():
        return TargetLocation("folder", path)
    if path.is_file() and path.suffix == ".gguf":
        return TargetLocation("gguf", path)
    reason = "no such file or folder" if not path.exists() else "neither a .gguf file nor a folder with config.json"
    raise InputError(
        f"target.path = {target_path!r}: {reason} ({path})", "copy the weights there, or correct target.path"
    )


def _weights_in_package(name: str) -> Path:
    spec = importlib.util.find_spec(name) if name.isidentifier() else None
    folders = list(spec.submodule_search_locations or ()) if spec else []
    for folder in map(Path, folders):
        found = sorted(folder.rglob("*.gguf"))
        if found:
            return found[0]
        config = next(iter(sorted(folder.rglob("config.json"))), None)
        if config:
            return config.parent
    problem = "contains no weights" if folders else "is not installed"
    raise InputError(
        f"target.path = 'package:{name}': the package {problem}", f"install a package {name} with weights"
    )


def _shape_of_gguf(path: Path) -> TargetShape:
    header = read_gguf_header(path)
    architecture = header.values.get("general.architecture")
    if architecture not in ("llama", "qwen3"):
        raise InputError(
            f"{path}: architecture {architecture!r} is not supported", "use a Llama or Qwen3 GGUF, or safetensors"
        )

    def value(key: str, default: Any = None) -> Any:
        found = header.values.get(f"{architecture}.{key}", default)
        if found is None:
            raise InputError(f"{path}: {architecture}.{key} is missing in the header", "convert the weights again")
        return found

    hidden, heads = int(value("embedding_length")), int(value("attention.head_count"))
    vocab = header.tensors["token_embd.weight"][1] if "token_embd.weight" in header.tensors else value("vocab_size")
    return TargetShape(
        family="llama" if architecture == "llama" else "qwen3",
        hidden_size=hidden,
        num_layers=int(value("block_count")),
        intermediate_size=int(value("feed_forward_length")),
        num_heads=heads,
        num_kv_heads=int(value("attention.head_count_kv", heads)),
        head_dim=int(value("attention.key_length", hidden // heads)),
        vocab_size=int(vocab),
        rope_theta=float(value("rope.freq_base", 10000.0)),
        rms_norm_eps=float(value("attention.layer_norm_rms_epsilon", 1e-6)),
        max_positions=int(value("context_length", 0)),
        tied="output.weight" not in header.tensors,
        pad_token_id=header.values.get("tokenizer.ggml.padding_token_id"),
    )


def _shape_of_folder(folder: Path) -> TargetShape:
    file = folder / "config.json"
    try:
        document = json.loads(file.read_text(encoding="utf-8"))
        text = document.get("text_config", document)
        family = _FAMILIES.get(text.get("model_type"), _FAMILIES.get(document.get("model_type")))
        if family is None:
            model_type = text.get("model_type")
            raise InputError(f"{file}: model_type {model_type!r} is not supported", "use Llama, Qwen3 or Qwen3.5/3.6")
        heads = text["num_attention_heads"]
        rope = text.get("rope_parameters") or {}
        return TargetShape(
            family=family,
            hidden_size=text["hidden_size"],
            num_layers=text["num_hidden_layers"],
            intermediate_size=text["intermediate_size"],
            num_heads=heads,
            num_kv_heads=text.get("num_key_value_heads", heads),
            head_dim=text.get("head_dim") or text["hidden_size"] // heads,
            vocab_size=text["vocab_size"],
            rope_theta=float(rope.get("rope_theta", text.get("rope_theta", 10000.0))),
            rms_norm_eps=float(text.get("rms_norm_eps", 1e-6)),
            max_positions=text.get("max_position_embeddings", 0),
            tied=any(part.get("tie_word_embeddings", False) for part in (text, document)),
            pad_token_id=text.get("pad_token_id", document.get("pad_token_id")),
        )
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        if isinstance(error, InputError):
            raise
        raise InputError(
            f"{file}: cannot be read ({type(error).__name__}: {error})", "download the weights again"
        ) from error
