"""A decoder layer of the drafter: pure functions that compute, and modules that hold the weights.

The functions take weights as arguments, so each compiles once per worker for all layers. A layer is `project`
(queries, keys and values) followed by `attention_and_mlp`.
"""

# Tensor letters: see dflash_trainer/__init__.py.

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from dflash_trainer.model.attention import FlexAttention, Visibility, attend
from dflash_trainer.model.rope import rotate
from dflash_trainer.model.shape import DrafterShape


class LayerWeights(NamedTuple):
    """The 11 tensors of a layer."""

    input_norm: Tensor
    q: Tensor
    k: Tensor
    v: Tensor
    o: Tensor
    q_norm: Tensor
    k_norm: Tensor
    post_norm: Tensor
    gate: Tensor
    up: Tensor
    down: Tensor


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Return the RMS norm of `x` [..., channels] over its last axis, with statistics in fp32."""
    wide = x.float()
    return weight * (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + eps)).to(x.dtype)


Projected = tuple[Tensor, Tensor, Tensor]
"""Inputs of attention: queries [B, Q, H, E], keys and values [B, S, G, E]; queries and keys after RoPE.

A plain tuple, like every result of a compiled function (see `WorkerCompiler`).
"""


def keys_and_values(
    inputs_BTD: Tensor, w: LayerWeights, cos: Tensor, sin: Tensor, *, head_dim: int, eps: float
) -> tuple[Tensor, Tensor]:
    """Return keys after RoPE and values, both [B, T, G, E]; tables `cos` and `sin` are [B, T, E]."""
    k, v = _project_keys_values(inputs_BTD, w, head_dim)
    return rotate(rms_norm(k, w.k_norm, eps), cos, sin), v


def queries(normed_BTD: Tensor, w: LayerWeights, cos: Tensor, sin: Tensor, *, head_dim: int, eps: float) -> Tensor:
    """Return queries after RoPE, [B, T, H, E]; tables `cos` and `sin` are [B, T, E]."""
    return rotate(rms_norm(_project_queries(normed_BTD, w, head_dim), w.q_norm, eps), cos, sin)


def project(
    x_BTD: Tensor,
    context_BLD: Tensor,
    w: LayerWeights,
    cos_BSE: Tensor,
    sin_BSE: Tensor,
    *,
    head_dim: int,
    eps: float,
    block: int = 0,
) -> Projected:
    """Project draft slots to queries, and context and draft slots to keys and values.

    The context skips the layer norm.

    Args:
        x_BTD: inputs of the layer, T = Q. With `block` (the first layer) T = U: every slot except the anchor is the
            same mask token, so its projections are computed once and copied to all slots.
        context_BLD: output of `Drafter.context`.
        w: weights of the layer.
        cos_BSE: cosine of the context positions, then of the draft slots.
        sin_BSE: sine of the same positions.
        head_dim: E.
        eps: epsilon of the norms.
        block: K in the first layer, 0 in all others.
    """
    normed = rms_norm(x_BTD, w.input_norm, eps)
    slots: tuple[Tensor, ...] = (_project_queries(normed, w, head_dim), *_project_keys_values(normed, w, head_dim))
    if block:
        slots = tuple(expand_to_slots(each, block) for each in slots)
    return _join_and_rotate(slots, _project_keys_values(context_BLD, w, head_dim), w, cos_BSE, sin_BSE, eps)


def expand_to_slots(x: Tensor, block: int) -> Tensor:
    """Expand [B, U, ...] to [B, Q, ...]: each anchor's entry is followed by K-1 copies of the mask token's entry."""
    anchors, mask = x[:, :-1, None], x[:, -1:, None]
    masks = mask.expand(-1, anchors.shape[1], block - 1, *x.shape[2:])
    return torch.cat((anchors, masks), dim=2).flatten(1, 2)


def _project_queries(normed: Tensor, w: LayerWeights, head_dim: int) -> Tensor:
    """Project [B, T, D] to queries [B, T, H, E]."""
    return functional.linear(normed, w.q).view(*normed.shape[:2], -1, head_dim)


def _project_keys_values(inputs: Tensor, w: LayerWeights, head_dim: int) -> tuple[Tensor, Tensor]:
    """Project [B, T, D] to keys and values [B, T, G, E] in one matmul; concatenating the narrow matrices is cheap."""
    both = functional.linear(inputs, torch.cat((w.k, w.v)))
    k, v = both.view(*inputs.shape[:2], -1, head_dim).chunk(2, dim=2)
    return k, v


def _join_and_rotate(
    slots: tuple[Tensor, ...], context: tuple[Tensor, Tensor], w: LayerWeights, cos: Tensor, sin: Tensor, eps: float
) -> Projected:
    """Append keys and values of the slots to those of the context, then apply q_norm, k_norm and RoPE."""
    q, slot_k, slot_v = slots
    length = context[0].shape[1]
    k, v = torch.cat((context[0], slot_k), dim=1), torch.cat((context[1], slot_v), dim=1)
    return (
        rotate(rms_norm(q, w.q_norm, eps), cos[:, length:], sin[:, length:]),
        rotate(rms_norm(k, w.k_norm, eps), cos, sin),
        v,
    )


def output_and_mlp(x_BTD: Tensor, attended_BTHE: Tensor, w: LayerWeights, eps: float) -> Tensor:
    """Apply the output projection and the gated MLP, each with its residual; returns [B, T, D]."""
    x = x_BTD + functional.linear(attended_BTHE.flatten(2), w.o)
    normed = rms_norm(x, w.post_norm, eps)
    hidden = functional.silu(functional.linear(normed, w.gate)) * functional.linear(normed, w.up)
    return x + functional.linear(hidden, w.down)


def drop_anchor_slot(x: Tensor, block: int) -> Tensor:
    """Drop slot 0, the anchor, which is never predicted: [B, Q, ...] to [B, N*W, ...]."""
    rows, width = x.shape[0], x.shape[1] // block * (block - 1)
    return x.unflatten(1, (-1, block))[:, :, 1:].reshape(rows, width, *x.shape[2:])


def attention_and_mlp(
    x_BQD: Tensor,
    projected: Projected,
    w: LayerWeights,
    visible: Visibility,
    flex: FlexAttention,
    *,
    eps: float,
    drop_anchor: bool,
) -> Tensor:
    """Apply attention and the MLP to the draft slots; returns [B, Q, D].

    With `drop_anchor` (the last layer) the anchor slots, which nothing reads, are dropped: [B, N*W, D].
    """
    attended = attend(*projected, visible, flex)
    if not drop_anchor:
        return output_and_mlp(x_BQD, attended, w, eps)
    block = visible.layout.block
    return output_and_mlp(drop_anchor_slot(x_BQD, block), drop_anchor_slot(attended, block), w, eps)


class Norm(nn.Module):
    """The weight of one norm."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))


class Attention(nn.Module):
    """Attention weights under their published names."""

    def __init__(self, shape: DrafterShape) -> None:
        super().__init__()
        hidden, width = shape.hidden_size, shape.head_dim
        self.q_proj = nn.Linear(hidden, shape.num_heads * width, bias=False)
        self.k_proj = nn.Linear(hidden, shape.num_kv_heads * width, bias=False)
        self.v_proj = nn.Linear(hidden, shape.num_kv_heads * width, bias=False)
        self.o_proj = nn.Linear(shape.num_heads * width, hidden, bias=False)
        self.q_norm = Norm(width)
        self.k_norm = Norm(width)


class Mlp(nn.Module):
    """MLP weights under their published names."""

    def __init__(self, shape: DrafterShape) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(shape.hidden_size, shape.intermediate_size, bias=False)
        self.up_proj = nn.Linear(shape.hidden_size, shape.intermediate_size, bias=False)
        self.down_proj = nn.Linear(shape.intermediate_size, shape.hidden_size, bias=False)


class DecoderLayer(nn.Module):
    """Weights of a layer, used by the functions above."""

    def __init__(self, shape: DrafterShape) -> None:
        super().__init__()
        self.self_attn = Attention(shape)
        self.mlp = Mlp(shape)
        self.input_layernorm = Norm(shape.hidden_size)
        self.post_attention_layernorm = Norm(shape.hidden_size)

    def weights(self) -> LayerWeights:
        """Return the tensors of the layer as `LayerWeights`."""
        attention, mlp = self.self_attn, self.mlp
        return LayerWeights(
            self.input_layernorm.weight,
            attention.q_proj.weight,
            attention.k_proj.weight,
            attention.v_proj.weight,
            attention.o_proj.weight,
            attention.q_norm.weight,
            attention.k_norm.weight,
            self.post_attention_layernorm.weight,
            mlp.gate_proj.weight,
            mlp.up_proj.weight,
            mlp.down_proj.weight,
        )
