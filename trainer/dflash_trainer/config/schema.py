"""Configuration of a run: one frozen dataclass per TOML section, validated on construction.

`config.load.load_config(path, overrides)` reads a TOML file into `Config`. Nothing here imports torch.
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
    """Checks shared by the sections; every error names the key, the value and the remedy."""

    SECTION: ClassVar[str]

    def _fail(self, name: str, reason: str, remedy: str) -> None:
        raise ConfigError(f"{self.SECTION}.{name}", getattr(self, name), reason, remedy)

    def _at_least(self, name: str, low: float) -> None:
        if not getattr(self, name) >= low:
            self._fail(name, "too small", f"use {low:g} or more")

    def _above(self, name: str, low: float) -> None:
        if not getattr(self, name) > low:
            self._fail(name, "too small", f"use a value above {low:g}")

    def _between(self, name: str, low: float, high: float) -> None:
        if not low <= getattr(self, name) <= high:
            self._fail(name, "out of range", f"use a value from {low:.10g} to {high:.10g}")

    def _seed(self, name: str) -> None:
        self._between(name, 0, _LARGEST_SEED)

    def _devices(self, name: str) -> None:
        devices: tuple[str, ...] = getattr(self, name)
        if not devices:
            self._fail(name, "no devices", 'list one device per worker, such as ["cuda:0"] or ["cpu"]')
        for device in devices:
            index = device.removeprefix("cuda:")
            if device != "cpu" and not (device.startswith("cuda:") and index.isascii() and index.isdigit()):
                self._fail(name, f"unknown device {device!r}", 'use "cpu" or "cuda:N"')
            if device != "cpu" and devices.count(device) > 1:
                self._fail(name, f"{device} is listed twice", "list each GPU once")


@dataclass(frozen=True, kw_only=True)
class TargetConfig(_Section):
    """Section [target]: the frozen model whose hidden states are captured."""

    SECTION = "target"

    path: str
    """Folder with config.json and safetensors, FILE.gguf, package:NAME or random:SHAPE."""
    dtype: Dtype = "bfloat16"
    """Type of the frozen weights and of the hidden states."""
    devices: tuple[str, ...] = ("cpu",)
    """One target worker per entry."""
    fast_path: Literal["require", "allow_slow"] = "require"
    """If fused CUDA kernels are missing: fail (require), or use slow reference code (allow_slow)."""
    cuda_graphs: bool = True
    """On CUDA: capture one CUDA graph per bucket, which keeps worker threads from contending for the GIL."""

    def __post_init__(self) -> None:
        self._devices("devices")
        if not self.path:
            self._fail("path", "empty", "use a folder, a .gguf file, package:NAME or random:SHAPE")


@dataclass(frozen=True, kw_only=True)
class DrafterConfig(_Section):
    """Section [drafter]: architecture and devices of the draft model."""

    SECTION = "drafter"

    mask_token_id: int
    """Token id of draft slots: a reserved id in the target's vocabulary, never the pad id."""
    devices: tuple[str, ...] = ("cpu",)
    """One drafter worker per entry."""
    dtype: Dtype = "bfloat16"
    """Type of the forward and backward pass; the optimizer keeps fp32 masters."""
    num_layers: int = 5
    """Number of decoder layers."""
    layer_types: tuple[LayerType, ...] = ()
    """One type per layer; empty: sliding layers and one full layer last, or all full if sliding_window is 0."""
    sliding_window: int = 0
    """Attention window of sliding layers in positions; 0: no sliding layers."""
    block_size: int = 16
    """Tokens per block: the anchor and block_size - 1 mask tokens."""
    num_captured: int = 5
    """Number of captured target layers, evenly spaced; used if target_layer_ids is empty."""
    target_layer_ids: tuple[int, ...] = ()
    """Captured target layers, 0-based; empty: num_captured layers."""
    intermediate_size: int = 0
    """Hidden size of the MLP; 0: as in the target."""
    num_heads: int = 0
    """Attention heads; 0: as in the target."""
    num_kv_heads: int = 0
    """Key-value heads; 0: as in the target."""
    head_dim: int = 0
    """Channels per head; 0: as in the target."""
    rope_theta: float = 0.0
    """Base of rotary position embedding; 0: as in the target."""
    rms_norm_eps: float = 0.0
    """Epsilon of the norms; 0: as in the target."""
    init_from: str = ""
    """Folder of a published drafter (model.safetensors) to start from; empty: random weights."""

    def __post_init__(self) -> None:
        self._devices("devices")
        self._at_least("mask_token_id", 0)
        self._at_least("num_layers", 1)
        self._at_least("block_size", 2)
        self._at_least("num_captured", 1)
        for name in ("sliding_window", "intermediate_size", "num_heads", "num_kv_heads", "head_dim"):
            self._at_least(name, 0)
        if self.head_dim % 2:
            self._fail("head_dim", "odd, but rotary embedding needs pairs of channels", "use an even number")
        self._at_least("rope_theta", 0.0)
        self._at_least("rms_norm_eps", 0.0)
        if self.layer_types and len(self.layer_types) != self.num_layers:
            reason = f"{len(self.layer_types)} types for {self.num_layers} layers"
            self._fail("layer_types", reason, "list one type per layer")
        if "sliding_attention" in self.layer_types and not self.sliding_window:
            self._fail("layer_types", "a sliding layer needs a window", "set drafter.sliding_window")
        ids = self.target_layer_ids
        if list(ids) != sorted(set(ids)) or any(i < 0 for i in ids):
            self._fail("target_layer_ids", "not in ascending order", "list each 0-based layer once, in ascending order")
        if self.num_heads and self.num_kv_heads and self.num_heads % self.num_kv_heads:
            self._fail("num_kv_heads", f"does not divide {self.num_heads} heads", "use a divisor of num_heads")

    @property
    def resolved_layer_types(self) -> tuple[LayerType, ...]:
        """Type of each layer, with the default filled in."""
        if self.layer_types:
            return self.layer_types
        if not self.sliding_window:
            return (FULL,) * self.num_layers
        return (SLIDING,) * (self.num_layers - 1) + (FULL,)

    def captured_layers(self, target_layers: int) -> tuple[int, ...]:
        """Return the 0-based ids of the captured layers in a target of that depth. Raises ConfigError."""
        if self.target_layer_ids:
            ids = self.target_layer_ids
        elif self.num_captured == 1:
            ids = (target_layers // 2,)
        else:
            step = (target_layers - 4) / (self.num_captured - 1)
            ids = tuple(round(1 + i * step) for i in range(self.num_captured))
        if list(ids) != sorted(set(ids)) or ids[0] < 0 or ids[-1] >= target_layers:
            key = "target_layer_ids" if self.target_layer_ids else "num_captured"
            self._fail(key, f"the target has {target_layers} layers", "capture fewer layers, each below that number")
        return ids


@dataclass(frozen=True, kw_only=True)
class ObjectiveConfig(_Section):
    """Section [objective]: draft blocks and loss."""

    SECTION = "objective"

    kind: Literal["decay", "dpace"] = "decay"
    """Weights of the slots: decay exp(-(k-1)/gamma), or D-PACE from the drafter's confidence."""
    gamma: float = 0.0
    """Decay length in slots; 0: 7, 5 or 4 for a block size of 16, 10 or 8."""
    alpha: float = 0.5
    """Smoothing of D-PACE."""
    num_anchors: int = 512
    """Blocks drawn per sample and step; short samples are padded with masked blocks."""
    noise_std: float = 0.0
    """Standard deviation of noise added to the hidden states (0.05 in the original runs)."""
    head_chunk: int = 4096
    """Maximum rows of logits in memory at once."""
    head_precision: Literal["dtype", "fp8"] = "dtype"
    """Precision of matmuls with the head: the drafter's dtype, or fp8 on GPUs that support it."""

    def __post_init__(self) -> None:
        self._at_least("gamma", 0.0)
        self._between("alpha", 0.0, 1.0)
        self._at_least("num_anchors", 1)
        self._at_least("noise_std", 0.0)
        self._at_least("head_chunk", 1)

    def resolved_gamma(self, block_size: int) -> float:
        """Return the decay length for this block size, in slots."""
        return self.gamma or _GAMMA_OF_BLOCK.get(block_size, max(1.0, block_size * 7 / 16))


@dataclass(frozen=True, kw_only=True)
class DataConfig(_Section):
    """Section [data]: datasets and batches."""

    SECTION = "data"

    path: str = ""
    """Folder of an Arrow dataset with input_ids and loss_mask; required for training."""
    eval_path: str = ""
    """Folder of a held-out dataset in the same format; empty: no evaluation."""
    buckets: tuple[int, ...] = (512, 1024, 2048, 4096)
    """Sequence lengths that batches are padded to; longer samples are truncated to the last one."""
    batch_tokens: int = 4096
    """Tokens per batch: bucket L holds batch_tokens // L samples."""
    seed: int = 0
    """Seed of the sample order, combined with the epoch."""
    prefetch: int = 8
    """Batches to read ahead."""

    def __post_init__(self) -> None:
        if not self.buckets or list(self.buckets) != sorted(set(self.buckets)) or self.buckets[0] < 8:
            self._fail("buckets", "not in ascending order, or below 8", "list lengths such as [512, 1024, 2048]")
        if self.batch_tokens < self.buckets[-1]:
            self._fail("batch_tokens", "smaller than the largest bucket", f"use {self.buckets[-1]} or more")
        self._at_least("prefetch", 1)
        self._seed("seed")

    def batch_size(self, bucket: int) -> int:
        """Return the number of samples in a batch of this bucket."""
        return self.batch_tokens // bucket


@dataclass(frozen=True, kw_only=True)
class OptimizerConfig(_Section):
    """Section [optimizer]: optimizer, learning rate and length of the run."""

    SECTION = "optimizer"

    kind: Literal["adamw", "muon"] = "adamw"
    """muon: Muon for matrices, AdamW for the other weights."""
    lr: float = 6e-4
    """Peak learning rate."""
    betas: tuple[float, ...] = (0.9, 0.999)
    """Decay rates of AdamW's moments."""
    eps: float = 1e-8
    """Epsilon of AdamW."""
    weight_decay: float = 0.0
    """Decoupled weight decay of matrices; norms are not decayed."""
    clip: float = 1.0
    """Maximum gradient norm; 0: no clipping."""
    schedule: Literal["cosine", "wsd"] = "cosine"
    """After the warm-up: cosine decay to zero, or constant followed by linear decay (wsd)."""
    warmup_ratio: float = 0.04
    """Fraction of all steps used for warm-up."""
    decay_ratio: float = 0.2
    """wsd: fraction of all steps used for the decay."""
    epochs: int = 6
    """Passes over the data; max_steps can end a run earlier."""
    max_steps: int = 0
    """Maximum number of optimizer steps; 0: as many as the epochs give."""
    accumulate: int = 1
    """Batches per drafter and optimizer step."""
    state_dtype: Dtype = "float32"
    """Type of the optimizer's moments."""

    def __post_init__(self) -> None:
        self._above("lr", 0.0)
        if len(self.betas) != 2 or not all(0 <= b < 1 for b in self.betas):
            self._fail("betas", "not two rates in [0, 1)", "use two values such as [0.9, 0.999]")
        self._above("eps", 0.0)
        self._at_least("weight_decay", 0.0)
        self._at_least("clip", 0.0)
        self._between("warmup_ratio", 0.0, 1.0)
        self._between("decay_ratio", 0.0, 1.0)
        if self.schedule == "wsd" and self.warmup_ratio + self.decay_ratio > 1.0:
            self._fail("decay_ratio", f"decay would begin during the warm-up of {self.warmup_ratio:g}", "lower either")
        self._at_least("epochs", 1)
        self._at_least("max_steps", 0)
        self._at_least("accumulate", 1)


@dataclass(frozen=True, kw_only=True)
class RuntimeConfig(_Section):
    """Section [runtime]: compilation, memory and robustness."""

    SECTION = "runtime"

    compile: bool = True
    """Compile the drafter, and on CUDA the target, with torch.compile."""
    gradient_checkpointing: bool = False
    """Recompute the drafter's layers in the backward pass to save memory."""
    queue_depth: int = 4
    """Batches of hidden states that can wait for a drafter."""
    nan_limit: int = 10
    """Consecutive batches with NaN or Inf that end the run."""
    seed: int = 0
    """Seed of initial weights, anchors and noise."""

    def __post_init__(self) -> None:
        self._at_least("queue_depth", 1)
        self._at_least("nan_limit", 1)
        self._seed("seed")


@dataclass(frozen=True, kw_only=True)
class CheckpointConfig(_Section):
    """Section [checkpoint]: interval, retention and upload."""

    SECTION = "checkpoint"

    every_steps: int = 500
    """Steps between checkpoints."""
    keep: int = 3
    """Newest checkpoints to keep, in addition to the best one."""
    s3_uri: str = ""
    """Upload finished checkpoints to s3://bucket/prefix; empty: no upload."""

    def __post_init__(self) -> None:
        self._at_least("every_steps", 1)
        self._at_least("keep", 1)
        if self.s3_uri and not (self.s3_uri.startswith("s3://") and self.s3_uri[5:].split("/")[0]):
            self._fail("s3_uri", "not an S3 address", "use s3://bucket/prefix, or leave it empty")


@dataclass(frozen=True, kw_only=True)
class LoggingConfig(_Section):
    """Section [logging]: console and trackers."""

    SECTION = "logging"

    every_steps: int = 10
    """Steps between console lines; metrics.jsonl has every step."""
    wandb: Literal["disabled", "offline", "online"] = "disabled"
    """Mode of Weights & Biases; online needs WANDB_API_KEY and never prompts."""
    wandb_project: str = "dflash"
    """Project in Weights & Biases."""
    tensorboard: bool = False
    """Write TensorBoard event files to the run's tensorboard folder."""

    def __post_init__(self) -> None:
        self._at_least("every_steps", 1)


@dataclass(frozen=True, kw_only=True)
class EvaluationConfig(_Section):
    """Section [evaluation]: evaluations on held-out data during training."""

    SECTION = "evaluation"

    every_steps: int = 0
    """Steps between evaluations on data.eval_path; 0: no evaluation during training."""
    samples: int = 64
    """Number of held-out samples to use."""

    def __post_init__(self) -> None:
        self._at_least("every_steps", 0)
        self._at_least("samples", 1)


@dataclass(frozen=True, kw_only=True)
class Config:
    """All settings of a run; paths are absolute when loaded from a file."""

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
            steps = self.evaluation.every_steps
            raise ConfigError("evaluation.every_steps", steps, "no held-out data", "set data.eval_path, or use 0")
        longest, block = self.data.buckets[-1], self.drafter.block_size
        if longest <= block:
            reason = f"a sample of {longest} tokens has no room for a block of {block} after its context"
            raise ConfigError("data.buckets", list(self.data.buckets), reason, "use longer buckets or smaller blocks")
        anchors = self.objective.num_anchors
        if anchors >= longest:
            reason = f"a sample of {longest} tokens has only {longest - 1} possible anchors"
            raise ConfigError("objective.num_anchors", anchors, reason, f"use {longest - 1} or less, or longer buckets")
        if self.objective.head_precision == "fp8" and "cpu" in self.drafter.devices:
            raise ConfigError("objective.head_precision", "fp8", "fp8 matmul needs a GPU", 'use "dtype"')

    def to_dict(self) -> dict[str, Any]:
        """Return plain nested values, as stored in config.json."""
        plain: dict[str, Any] = dataclasses.asdict(self)
        return plain

    @property
    def devices(self) -> tuple[str, ...]:
        """Devices of all workers, targets first, without duplicates."""
        return tuple(dict.fromkeys(self.target.devices + self.drafter.devices))
