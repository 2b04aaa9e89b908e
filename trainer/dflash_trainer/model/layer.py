"""One decoder layer as functions of tensors, so that each compiles once for all layers and devices, and its module.

Two functions in turn: projection to queries, keys and values, then attention and MLP.
"""

# Tensor letters: see dflash_trainer.model.

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
    """Root-mean-square norm over the last axis, statistics in fp32."""
    wide = x.float()
    return weight * (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + eps)).to(x.dtype)


Projected = tuple[Tensor, Tensor, Tensor]
"""Arguments of attention: queries [B, Q, H, E], keys and values [B, S, G, E]; queries and keys are rotated.

A plain tuple, as every result of a compiled function (see `WorkerCompiler`).
"""


def keys_and_values(
    inputs: Tensor, w: LayerWeights, cos: Tensor, sin: Tensor, *, head_dim: int, eps: float
) -> tuple[Tensor, Tensor]:
    """Rotated keys and plain values of `inputs` [B, T, D]: two tensors [B, T, G, E]."""
    k, v = _narrow(inputs, w, head_dim)
    return rotate(rms_norm(k, w.k_norm, eps), cos, sin), v


def queries(normed: Tensor, w: LayerWeights, cos: Tensor, sin: Tensor, *, head_dim: int, eps: float) -> Tensor:
    """Rotated queries of `normed` [B, Q, D]: [B, Q, H, E]."""
    return rotate(rms_norm(_wide(normed, w, head_dim), w.q_norm, eps), cos, sin)


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
    """Queries of the draft slots; keys and values of the context, which skips the layer norm, and of the slots.

    Args:
        x_BTD: all slots, T = Q. With `block` (the first layer) T = U: the N anchors' and the mask token's, since every
            slot but an anchor's is the same mask token; its products are made once and spread over its slots.
    """
    normed = rms_norm(x_BTD, w.input_norm, eps)
    own: tuple[Tensor, ...] = (_wide(normed, w, head_dim), *_narrow(normed, w, head_dim))
    if block:
        own = tuple(spread_over_slots(each, block) for each in own)
    return _rotated(own, _narrow(context_BLD, w, head_dim), w, cos_BSE, sin_BSE, eps)


def spread_over_slots(x: Tensor, block: int) -> Tensor:
    """[B, N+1, ...], the last one the mask's, to [B, N*K, ...]: each anchor's followed by B-1 times the mask's."""
    anchors, mask = x[:, :-1, None], x[:, -1:, None]
    masks = mask.expand(-1, anchors.shape[1], block - 1, *x.shape[2:])
    return torch.cat((anchors, masks), dim=2).flatten(1, 2)


def _wide(normed: Tensor, w: LayerWeights, head_dim: int) -> Tensor:
    return functional.linear(normed, w.q).view(*normed.shape[:2], -1, head_dim)


def _narrow(inputs: Tensor, w: LayerWeights, head_dim: int) -> tuple[Tensor, Tensor]:
    """Keys and values come from one product: the two matrices are narrow, their copy side by side costs little."""
    both = functional.linear(inputs, torch.cat((w.k, w.v)))
    k, v = both.view(*inputs.shape[:2], -1, head_dim).chunk(2, dim=2)
    return k, v


def _rotated(
    own: tuple[Tensor, ...], before: tuple[Tensor, Tensor], w: LayerWeights, cos: Tensor, sin: Tensor, eps: float
) -> Projected:
    """Join the slots' products (queries, keys, values) with the context's (keys, values), norm and rotate them."""
    q, own_k, own_v = own
    width = before[0].shape[1]
    k, v = torch.cat((before[0], own_k), dim=1), torch.cat((before[1], own_v), dim=1)
    return (
        rotate(rms_norm(q, w.q_norm, eps), cos[:, width:], sin[:, width:]),
        rotate(rms_norm(k, w.k_norm, eps), cos, sin),
        v,
    )


def mix_and_feed(x_BQD: Tensor, mixed_BQHE: Tensor, w: LayerWeights, eps: float) -> Tensor:
    """Output projection, residual, gated MLP, residual."""
    x = x_BQD + functional.linear(mixed_BQHE.flatten(2), w.o)
    normed = rms_norm(x, w.post_norm, eps)
    hidden = functional.silu(functional.linear(normed, w.gate)) * functional.linear(normed, w.up)
    return x + functional.linear(hidden, w.down)


def without_first_slot(x: Tensor, block: int) -> Tensor:
    """Drop slot 0 (the anchor, never predicted) of every block of axis 1."""
    rows, width = x.shape[0], x.shape[1] // block * (block - 1)
    return x.unflatten(1, (-1, block))[:, :, 1:].reshape(rows, width, *x.shape[2:])


def attend_and_feed(
    x_BQD: Tensor,
    projected: Projected,
    w: LayerWeights,
    visible: Visibility,
    flex: FlexAttention,
    *,
    eps: float,
    drop_anchor: bool,
) -> Tensor:
    """Draft slots attend to the context and to their own block, then pass the MLP; returns [B, Q, D].

    With `drop_anchor` (the last layer) slot 0 is left out of the output: nothing reads it.
    """
    mixed = attend(*projected, visible, flex)
    if drop_anchor:
        x_BQD = without_first_slot(x_BQD, visible.layout.block)
        mixed = without_first_slot(mixed, visible.layout.block)
    return mix_and_feed(x_BQD, mixed, w, eps)


class Norm(nn.Module):
    """Holds one norm weight."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))


class Attention(nn.Module):
    """Holds the attention weights under their published names."""

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
    """Holds the MLP weights under their published names."""

    def __init__(self, shape: DrafterShape) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(shape.hidden_size, shape.intermediate_size, bias=False)
        self.up_proj = nn.Linear(shape.hidden_size, shape.intermediate_size, bias=False)
        self.down_proj = nn.Linear(shape.intermediate_size, shape.hidden_size, bias=False)


class DecoderLayer(nn.Module):
    """Holds a layer's weights; the functions above compute with them."""

    def __init__(self, shape: DrafterShape) -> None:
        super().__init__()
        self.self_attn = Attention(shape)
        self.mlp = Mlp(shape)
        self.input_layernorm = Norm(shape.hidden_size)
        self.post_attention_layernorm = Norm(shape.hidden_size)

    def weights(self) -> LayerWeights:
        """The layer's tensors in the order of `LayerWeights`."""
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
