"""The configuration of a run: frozen dataclasses, one a TOML section, checked when built.

`config_file.load_config(path, overrides)` reads a TOML file into `Config`. Nothing here imports torch.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

from dflash_trainer.errors import ConfigError

Dtype = Literal["float32", "bfloat16"]
LayerType = Literal["sliding_attention", "full_attention"]
SLIDING: LayerType = "sliding_attention"
FULL: LayerType = "full_attention"

_LARGEST_SEED = 2**32 - 1
_GAMMA_OF_BLOCK = {16: 7.0, 10: 5.0, 8: 4.0}


class _Section:
    """Checks shared by the sections; each failure names the key, the value and the remedy."""

    SECTION: ClassVar[str]

    def _refuse(self, name: str, reason: str, remedy: str) -> None:
        raise ConfigError(f"{self.SECTION}.{name}", getattr(self, name), reason, remedy)

    def _at_least(self, name: str, low: float) -> None:
        if not getattr(self, name) >= low:
            self._refuse(name, "too small", f"use {low:g} or more")

    def _above(self, name: str, low: float) -> None:
        if not getattr(self, name) > low:
            self._refuse(name, "too small", f"use a value above {low:g}")

    def _between(self, name: str, low: float, high: float) -> None:
        if not low <= getattr(self, name) <= high:
            self._refuse(name, "out of range", f"use a value from {low:.10g} to {high:.10g}")

    def _seed(self, name: str) -> None:
        self._between(name, 0, _LARGEST_SEED)

    def _devices(self, name: str) -> None:
        devices: tuple[str, ...] = getattr(self, name)
        if not devices:
            self._refuse(name, "no worker", 'list one device a worker, such as ["cuda:0"] or ["cpu"]')
        for device in devices:
            index = device.removeprefix("cuda:")
            if device != "cpu" and not (device.startswith("cuda:") and index.isascii() and index.isdigit()):
                self._refuse(name, f"unknown device {device!r}", 'use "cpu" or "cuda:N"')
            if device != "cpu" and devices.count(device) > 1:
                self._refuse(name, f"{device} stands twice", "give each GPU one worker of a kind")


@dataclass(frozen=True, kw_only=True)
class TargetConfig(_Section):
    SECTION = "target"

    path: str
    """Folder (config.json + safetensors), FILE.gguf, package:NAME, or random:SHAPE."""
    dtype: Dtype = "bfloat16"
    """Type the frozen weights and the hidden states have."""
    devices: tuple[str, ...] = ("cpu",)
    """One target worker per entry."""
    fast_path: Literal["require", "allow_slow"] = "require"
    """On CUDA: refuse a target whose fused kernels are missing, or run it slowly."""
    cuda_graphs: bool = True
    """On CUDA: capture one graph a bucket, so that threads do not fight over Python."""

    def __post_init__(self) -> None:
        self._devices("devices")
        if not self.path:
            self._refuse("path", "empty", "name a folder, a .gguf file, package:NAME or random:SHAPE")


@dataclass(frozen=True, kw_only=True)
class DrafterConfig(_Section):
    SECTION = "drafter"

    mask_token_id: int
    """A reserved id inside the target's vocabulary, never the pad id."""
    devices: tuple[str, ...] = ("cpu",)
    """One drafter worker per entry."""
    dtype: Dtype = "bfloat16"
    """Type of forward and backward; the optimizer keeps fp32 masters."""
    num_layers: int = 5
    """Decoder layers."""
    layer_types: tuple[LayerType, ...] = ()
    """One per layer; empty: sliding layers and a full one last, or all full when sliding_window is 0."""
    sliding_window: int = 0
    """Positions a sliding layer sees (q - k < window); 0: no sliding layers."""
    block_size: int = 16
    """Tokens of a block: the anchor and block_size - 1 masks."""
    num_captured: int = 5
    """Target layers captured, spread evenly; used when target_layer_ids is empty."""
    target_layer_ids: tuple[int, ...] = ()
    """0-based target layers whose outputs are captured."""
    intermediate_size: int = 0
    """0: the target's."""
    num_heads: int = 0
    """0: the target's."""
    num_kv_heads: int = 0
    """0: the target's."""
    head_dim: int = 0
    """0: the target's."""
    rope_theta: float = 0.0
    """0: the target's."""
    rms_norm_eps: float = 0.0
    """0: the target's."""
    init_from: str = ""
    """Published drafter (folder with model.safetensors) to start from; empty: random."""

    def __post_init__(self) -> None:
        self._devices("devices")
        self._at_least("mask_token_id", 0)
        self._at_least("num_layers", 1)
        self._at_least("block_size", 2)
        self._at_least("num_captured", 1)
        for name in ("sliding_window", "intermediate_size", "num_heads", "num_kv_heads", "head_dim"):
            self._at_least(name, 0)
        if self.head_dim % 2:
            self._refuse("head_dim", "odd, and rotary embedding turns pairs", "use an even number")
        self._at_least("rope_theta", 0.0)
        self._at_least("rms_norm_eps", 0.0)
        if self.layer_types and len(self.layer_types) != self.num_layers:
            self._refuse(
                "layer_types", f"{len(self.layer_types)} types for {self.num_layers} layers", "list one a layer"
            )
        if "sliding_attention" in self.layer_types and not self.sliding_window:
            self._refuse("layer_types", "a sliding layer without a window", "set drafter.sliding_window")
        ids = self.target_layer_ids
        if list(ids) != sorted(set(ids)) or any(i < 0 for i in ids):
            self._refuse("target_layer_ids", "not ascending", "list 0-based layers once each, in order")
        if self.num_heads and self.num_kv_heads and self.num_heads % self.num_kv_heads:
            self._refuse("num_kv_heads", f"does not divide {self.num_heads} heads", "use a divisor of num_heads")

    @property
    def resolved_layer_types(self) -> tuple[LayerType, ...]:
        """One type a layer, the default spelled out."""
        if self.layer_types:
            return self.layer_types
        if not self.sliding_window:
            return (FULL,) * self.num_layers
        return (SLIDING,) * (self.num_layers - 1) + (FULL,)

    def captured_layers(self, target_layers: int) -> tuple[int, ...]:
        """0-based ids of the captured layers of a target with `target_layers` layers."""
        if self.target_layer_ids:
            ids = self.target_layer_ids
        elif self.num_captured == 1:
            ids = (target_layers // 2,)
        else:
            step = (target_layers - 4) / (self.num_captured - 1)
            ids = tuple(round(1 + i * step) for i in range(self.num_captured))
        if list(ids) != sorted(set(ids)) or ids[0] < 0 or ids[-1] >= target_layers:
            key = "target_layer_ids" if self.target_layer_ids else "num_captured"
            self._refuse(key, f"the target has {target_layers} layers", "capture fewer layers, each below that number")
        return ids


@dataclass(frozen=True, kw_only=True)
class ObjectiveConfig(_Section):
    SECTION = "objective"

    kind: Literal["decay", "dpace"] = "decay"
    """Weights of the slots: exp(-(k-1)/gamma), or D-PACE's from the model's own confidence."""
    gamma: float = 0.0
    """Decay length in slots; 0: 7, 5, 4 for blocks of 16, 10, 8."""
    alpha: float = 0.5
    """D-PACE's smoothing."""
    num_anchors: int = 512
    """Blocks drawn a sample at each step; short samples leave the rest masked."""
    noise_std: float = 0.0
    """Standard deviation of the noise added to hidden states (0.05 in the original runs)."""
    head_chunk: int = 4096
    """Rows of logits held at once."""
    head_precision: Literal["dtype", "fp8"] = "dtype"
    """Type of the head's matrix products: the drafter's, or fp8 where the GPU has it."""

    def __post_init__(self) -> None:
        self._at_least("gamma", 0.0)
        self._between("alpha", 0.0, 1.0)
        self._at_least("num_anchors", 1)
        self._at_least("noise_std", 0.0)
        self._at_least("head_chunk", 1)

    def resolved_gamma(self, block_size: int) -> float:
        """Decay length for this block size, in slots."""
        return self.gamma or _GAMMA_OF_BLOCK.get(block_size, max(1.0, block_size * 7 / 16))


@dataclass(frozen=True, kw_only=True)
class DataConfig(_Section):
    SECTION = "data"

    path: str = ""
    """Folder of an Arrow dataset with input_ids and loss_mask; needed to train."""
    eval_path: str = ""
    """The same, held out; empty: no evaluation."""
    buckets: tuple[int, ...] = (512, 1024, 2048, 4096)
    """Sequence lengths that batches are padded to; longer samples are cut to the last."""
    batch_tokens: int = 4096
    """Tokens a batch: a bucket of S holds batch_tokens // S samples."""
    seed: int = 0
    """Order of the samples, with the epoch."""
    prefetch: int = 8
    """Batches read ahead."""

    def __post_init__(self) -> None:
        if not self.buckets or list(self.buckets) != sorted(set(self.buckets)) or self.buckets[0] < 8:
            self._refuse("buckets", "not ascending lengths of 8 or more", "list lengths such as [512, 1024, 2048]")
        if self.batch_tokens < self.buckets[-1]:
            self._refuse("batch_tokens", "smaller than the largest bucket", f"use {self.buckets[-1]} or more")
        self._at_least("prefetch", 1)
        self._seed("seed")

    def batch_size(self, bucket: int) -> int:
        """Samples in a batch of this bucket."""
        return self.batch_tokens // bucket


@dataclass(frozen=True, kw_only=True)
class OptimizerConfig(_Section):
    SECTION = "optimizer"

    kind: Literal["adamw", "muon"] = "adamw"
    """muon: Muon for the layers' matrices, AdamW for the rest."""
    lr: float = 6e-4
    """Peak learning rate."""
    betas: tuple[float, ...] = (0.9, 0.999)
    """AdamW's two decay rates."""
    eps: float = 1e-8
    """AdamW's denominator floor."""
    weight_decay: float = 0.0
    """Decoupled decay of matrices; norms are never decayed."""
    clip: float = 1.0
    """Largest norm of a step's gradient; 0: not clipped."""
    schedule: Literal["cosine", "wsd"] = "cosine"
    """cosine to zero, or warm-up, stable, decay."""
    warmup_ratio: float = 0.04
    """Part of all steps spent warming up."""
    decay_ratio: float = 0.2
    """wsd: part of all steps spent decaying."""
    epochs: int = 6
    """Passes over the data; max_steps ends a run earlier."""
    max_steps: int = 0
    """Optimizer steps; 0: what the epochs give."""
    accumulate: int = 1
    """Batches a drafter takes before a step."""
    state_dtype: Dtype = "float32"
    """Type of the optimizer's two moments."""

    def __post_init__(self) -> None:
        self._above("lr", 0.0)
        if len(self.betas) != 2 or not all(0 <= b < 1 for b in self.betas):
            self._refuse("betas", "not two rates", "use two values in [0, 1), such as [0.9, 0.999]")
        self._above("eps", 0.0)
        self._at_least("weight_decay", 0.0)
        self._at_least("clip", 0.0)
        self._between("warmup_ratio", 0.0, 1.0)
        self._between("decay_ratio", 0.0, 1.0)
        if self.schedule == "wsd" and self.warmup_ratio + self.decay_ratio > 1.0:
            self._refuse("decay_ratio", f"decay would begin inside the warm-up of {self.warmup_ratio:g}", "lower one")
        self._at_least("epochs", 1)
        self._at_least("max_steps", 0)
        self._at_least("accumulate", 1)


@dataclass(frozen=True, kw_only=True)
class RuntimeConfig(_Section):
    SECTION = "runtime"

    compile: bool = True
    """Compile the drafter's layers."""
    gradient_checkpointing: bool = False
    """Recompute layers in the backward pass."""
    queue_depth: int = 4
    """Batches of hidden states that may wait for a drafter."""
    nan_limit: int = 10
    """Unusable batches in a row that end the run."""
    seed: int = 0
    """Initial weights, anchors and noise."""

    def __post_init__(self) -> None:
        self._at_least("queue_depth", 1)
        self._at_least("nan_limit", 1)
        self._seed("seed")


@dataclass(frozen=True, kw_only=True)
class CheckpointConfig(_Section):
    SECTION = "checkpoint"

    every_steps: int = 500
    """Steps between checkpoints."""
    keep: int = 3
    """Newest checkpoints kept, besides the best one."""
    s3_uri: str = ""
    """s3://bucket/prefix that finished checkpoints are copied to; empty: none."""

    def __post_init__(self) -> None:
        self._at_least("every_steps", 1)
        self._at_least("keep", 1)
        if self.s3_uri and not (self.s3_uri.startswith("s3://") and self.s3_uri[5:].split("/")[0]):
            self._refuse("s3_uri", "not an S3 address", "use s3://bucket/prefix, or leave it empty")


@dataclass(frozen=True, kw_only=True)
class LoggingConfig(_Section):
    SECTION = "logging"

    every_steps: int = 10
    """Steps between console lines (metrics.jsonl has every step)."""
    wandb: Literal["disabled", "offline", "online"] = "disabled"
    """online needs WANDB_API_KEY; nothing ever waits at a prompt."""
    wandb_project: str = "dflash"
    """Project the run is filed under."""
    tensorboard: bool = False
    """Write event files under the run's tensorboard folder."""

    def __post_init__(self) -> None:
        self._at_least("every_steps", 1)


@dataclass(frozen=True, kw_only=True)
class EvaluationConfig(_Section):
    SECTION = "evaluation"

    every_steps: int = 0
    """Steps between evaluations on data.eval_path; 0: none while training."""
    samples: int = 64
    """Held-out samples used."""

    def __post_init__(self) -> None:
        self._at_least("every_steps", 0)
        self._at_least("samples", 1)


@dataclass(frozen=True, kw_only=True)
class Config:
    """Everything a run depends on; paths are absolute once loaded from a file."""

    target: TargetConfig
    drafter: DrafterConfig
    objective: ObjectiveConfig = field(default_factory=ObjectiveConfig)
    data: DataConfig = field(default_factory=DataConfig)
    optimizer: OptimizerConfig = field(default_factory=OptimizerConfig)
    runtime: RuntimeConfig = field(default_factory=RuntimeConfig)
    checkpoint: CheckpointConfig = field(default_factory=CheckpointConfig)
    logging: LoggingConfig = field(default_factory=LoggingConfig)
    evaluation: EvaluationConfig = field(default_factory=EvaluationConfig)

    def __post_init__(self) -> None:
        if self.evaluation.every_steps and not self.data.eval_path:
            raise ConfigError(
                "evaluation.every_steps",
                self.evaluation.every_steps,
                "no held-out data",
                "set data.eval_path, or use 0",
            )
        longest, block = self.data.buckets[-1], self.drafter.block_size
        if longest <= block:
            reason = f"no sample of {longest} tokens holds a block of {block} after its context"
            raise ConfigError("data.buckets", list(self.data.buckets), reason, "use longer buckets or smaller blocks")
        anchors = self.objective.num_anchors
        if anchors >= longest:
            reason = f"a sample of {longest} tokens has {longest - 1} places for a block"
            raise ConfigError("objective.num_anchors", anchors, reason, f"use {longest - 1} or less, or longer buckets")
        if self.objective.head_precision == "fp8" and "cpu" in self.drafter.devices:
            raise ConfigError("objective.head_precision", "fp8", "a CPU has no fp8 products", 'use "dtype"')

    def to_dict(self) -> dict[str, Any]:
        """Plain nested values, as config.json stores them."""
        plain: dict[str, Any] = dataclasses.asdict(self)
        return plain

    @property
    def devices(self) -> tuple[str, ...]:
        """Every device used, once, targets first."""
        return tuple(dict.fromkeys(self.target.devices + self.drafter.devices))
