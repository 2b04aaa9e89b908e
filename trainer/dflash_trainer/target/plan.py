"""Structure of a target: layer kinds, sizes, tensor names and shapes, and rotary frequencies."""

# Tensor letters: see dflash_trainer/__init__.py.

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from dflash_trainer.config.target_shape import TargetShape
from dflash_trainer.target.delta_net import DeltaNetSizes
from dflash_trainer.target.layers import LayerSizes

LayerKind = Literal["attention", "delta_net"]

ATTENTION_NAMES = {
    "norm": "input_layernorm.weight",
    "q": "self_attn.q_proj.weight",
    "k": "self_attn.k_proj.weight",
    "v": "self_attn.v_proj.weight",
    "o": "self_attn.o_proj.weight",
    "q_norm": "self_attn.q_norm.weight",
    "k_norm": "self_attn.k_norm.weight",
}
DELTA_NET_NAMES = {
    "norm": "input_layernorm.weight",
    "qkv": "linear_attn.in_proj_qkv.weight",
    "z": "linear_attn.in_proj_z.weight",
    "b": "linear_attn.in_proj_b.weight",
    "a": "linear_attn.in_proj_a.weight",
    "conv": "linear_attn.conv1d.weight",
    "decay_log": "linear_attn.A_log",
    "decay_bias": "linear_attn.dt_bias",
    "out_norm": "linear_attn.norm.weight",
    "out": "linear_attn.out_proj.weight",
}
MLP_NAMES = {
    "norm": "post_attention_layernorm.weight",
    "gate": "mlp.gate_proj.weight",
    "up": "mlp.up_proj.weight",
    "down": "mlp.down_proj.weight",
}
"""Field names to published tensor names of a layer."""

_TAPS = 4
_FULL_EVERY = 4


@dataclass(frozen=True, kw_only=True)
class TargetPlan:
    """Everything about a target except its tensors."""

    shape: TargetShape
    kinds: tuple[LayerKind, ...]
    delta_net: DeltaNetSizes | None
    inverse_frequencies: tuple[float, ...]
    rope_scale: float

    @property
    def sizes(self) -> LayerSizes:
        """Constants of the layers."""
        hybrid = self.shape.family == "qwen3_5"
        return LayerSizes(self.shape.head_dim, self.shape.rms_norm_eps, gated=hybrid, centred=hybrid)

    def layer_shapes(self, layer: int) -> dict[str, tuple[int, ...]]:
        """Return published tensor names and their shapes for one layer."""
        first = self._attention_shapes() if self.kinds[layer] == "attention" else self._delta_net_shapes()
        hidden, wide = self.shape.hidden_size, self.shape.intermediate_size
        mlp = {"norm": (hidden,), "gate": (wide, hidden), "up": (wide, hidden), "down": (hidden, wide)}
        return first | {MLP_NAMES[field]: size for field, size in mlp.items()}

    def _attention_shapes(self) -> dict[str, tuple[int, ...]]:
        shape, hybrid = self.shape, self.shape.family == "qwen3_5"
        hidden, width = shape.hidden_size, shape.head_dim
        sizes: dict[str, tuple[int, ...]] = {
            "norm": (hidden,),
            "q": (shape.num_heads * width * (2 if hybrid else 1), hidden),
            "k": (shape.num_kv_heads * width, hidden),
            "v": (shape.num_kv_heads * width, hidden),
            "o": (hidden, shape.num_heads * width),
        }
        if shape.family != "llama":
            sizes |= {"q_norm": (width,), "k_norm": (width,)}
        return {ATTENTION_NAMES[field]: size for field, size in sizes.items()}

    def _delta_net_shapes(self) -> dict[str, tuple[int, ...]]:
        assert self.delta_net is not None
        hidden, heads = self.shape.hidden_size, self.delta_net
        keys, values = heads.key_heads * heads.key_dim, heads.value_heads * heads.value_dim
        sizes: dict[str, tuple[int, ...]] = {
            "norm": (hidden,),
            "qkv": (2 * keys + values, hidden),
            "z": (values, hidden),
            "b": (heads.value_heads, hidden),
            "a": (heads.value_heads, hidden),
            "conv": (2 * keys + values, 1, _TAPS),
            "decay_log": (heads.value_heads,),
            "decay_bias": (heads.value_heads,),
            "out_norm": (heads.value_dim,),
            "out": (hidden, values),
        }
        return {DELTA_NET_NAMES[field]: size for field, size in sizes.items()}


def plan_from_shape(shape: TargetShape) -> TargetPlan:
    """Return the plan of a random target: default rotary frequencies; in a hybrid, every 4th layer is attention."""
    hybrid = shape.family == "qwen3_5"
    kinds: tuple[LayerKind, ...] = tuple(
        "attention" if not hybrid or layer % _FULL_EVERY == _FULL_EVERY - 1 else "delta_net"
        for layer in range(shape.num_layers)
    )
    large = shape.hidden_size >= 1024
    heads = DeltaNetSizes(16, 48, 128, 128) if large else DeltaNetSizes(2, 4, 16, 16)
    return TargetPlan(
        shape=shape,
        kinds=kinds,
        delta_net=heads if hybrid else None,
        inverse_frequencies=_default_frequencies(shape.rope_theta, int(shape.head_dim * (0.25 if hybrid else 1.0))),
        rope_scale=1.0,
    )


def plan_from_config(shape: TargetShape, text_config: Any) -> TargetPlan:
    """Return the plan of published weights; `text_config` is the text model's transformers configuration."""
    types = getattr(text_config, "layer_types", None) or ["full_attention"] * shape.num_layers
    kinds: tuple[LayerKind, ...] = tuple("delta_net" if kind == "linear_attention" else "attention" for kind in types)
    heads = None
    if "delta_net" in kinds:
        heads = DeltaNetSizes(
            text_config.linear_num_key_heads,
            text_config.linear_num_value_heads,
            text_config.linear_key_head_dim,
            text_config.linear_value_head_dim,
        )
    frequencies, scale = _frequencies_of_config(shape, text_config)
    return TargetPlan(shape=shape, kinds=kinds, delta_net=heads, inverse_frequencies=frequencies, rope_scale=scale)


def rope_tables(plan: TargetPlan, positions_L: Tensor) -> tuple[Tensor, Tensor]:
    """Return cosine and sine of the positions, fp32, each [L, R]."""
    inverse = torch.tensor(plan.inverse_frequencies, dtype=torch.float32, device=positions_L.device)
    angle = positions_L.float()[:, None] * inverse
    angle = torch.cat((angle, angle), dim=-1)
    return angle.cos() * plan.rope_scale, angle.sin() * plan.rope_scale


def _default_frequencies(theta: float, width: int) -> tuple[float, ...]:
    exponent = torch.arange(0, width, 2, dtype=torch.int64).float() / width
    return tuple((1.0 / theta**exponent).tolist())


def _frequencies_of_config(shape: TargetShape, text_config: Any) -> tuple[tuple[float, ...], float]:
    rope = dict(getattr(text_config, "rope_parameters", None) or {})
    kind = rope.get("rope_type", "default")
    if kind == "default":
        part = rope.get("partial_rotary_factor", getattr(text_config, "partial_rotary_factor", None)) or 1.0
        return _default_frequencies(shape.rope_theta, int(shape.head_dim * part)), 1.0
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    inverse, scale = ROPE_INIT_FUNCTIONS[kind](text_config, torch.device("cpu"))
    return tuple(inverse.tolist()), float(scale)
