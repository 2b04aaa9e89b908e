"""The target's decoder layers as pure functions, for Llama, Qwen3 and Qwen3.5/3.6.

On CUDA each function is compiled once per worker for all layers of its kind. Sequences are padded on the right and
every layer is causal, so tokens never see padding and no mask is needed.
"""

# Tensor letters: see dflash_trainer/__init__.py.

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional


class MlpWeights(NamedTuple):
    """Weights of the MLP, the second half of every layer."""

    norm: Tensor
    gate: Tensor
    up: Tensor
    down: Tensor


class AttentionWeights(NamedTuple):
    """Weights of attention, the first half of a layer; q_norm and k_norm are None in Llama."""

    norm: Tensor
    q: Tensor
    k: Tensor
    v: Tensor
    o: Tensor
    q_norm: Tensor | None
    k_norm: Tensor | None


class LayerSizes(NamedTuple):
    """Constants of a layer."""

    head_dim: int
    eps: float
    gated: bool
    """The query projection also returns a gate for the output (Qwen3.5)."""
    centred: bool
    """Norm weights are stored as differences from 1 (Qwen3.5)."""


def rms_norm(x: Tensor, weight: Tensor, sizes: LayerSizes) -> Tensor:
    """Return the RMS norm of `x` [..., channels] over its last axis, with statistics in fp32."""
    wide = x.float()
    wide = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + sizes.eps)
    return (wide * (1.0 + weight.float())).to(x.dtype) if sizes.centred else weight * wide.to(x.dtype)


def rotate(x_BLHE: Tensor, cos_LR: Tensor, sin_LR: Tensor) -> Tensor:
    """Apply RoPE to the first R of E channels (R < E in targets with partial rotary embedding)."""
    width = cos_LR.shape[-1]
    head, rest = x_BLHE[..., :width], x_BLHE[..., width:]
    first, second = head.chunk(2, dim=-1)
    cos, sin = cos_LR[:, None].to(x_BLHE.dtype), sin_LR[:, None].to(x_BLHE.dtype)
    head = head * cos + torch.cat((-second, first), dim=-1) * sin
    return torch.cat((head, rest), dim=-1)


def mlp(x_BLD: Tensor, w: MlpWeights, sizes: LayerSizes) -> Tensor:
    """Apply norm, gated MLP and residual; returns [B, L, D]."""
    normed = rms_norm(x_BLD, w.norm, sizes)
    hidden = functional.silu(functional.linear(normed, w.gate)) * functional.linear(normed, w.up)
    return x_BLD + functional.linear(hidden, w.down)


def project(
    x_BLD: Tensor, w: AttentionWeights, cos_LR: Tensor, sin_LR: Tensor, sizes: LayerSizes
) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
    """Return queries [B, H, L, E], keys and values [B, G, L, E], and the gate [B, L, H*E] of gated attention."""
    shape = (*x_BLD.shape[:2], -1, sizes.head_dim)
    normed = rms_norm(x_BLD, w.norm, sizes)
    q, gate = functional.linear(normed, w.q), None
    if sizes.gated:
        q, gate = q.view(*x_BLD.shape[:2], -1, 2 * sizes.head_dim).chunk(2, dim=-1)
        gate = gate.flatten(2)
    q, k = q.view(shape), functional.linear(normed, w.k).view(shape)
    if w.q_norm is not None and w.k_norm is not None:
        q, k = rms_norm(q, w.q_norm, sizes), rms_norm(k, w.k_norm, sizes)
    v = functional.linear(normed, w.v).view(shape)
    q, k = rotate(q, cos_LR, sin_LR), rotate(k, cos_LR, sin_LR)
    return q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2), gate


def finish(
    x_BLD: Tensor, attended_BHLE: Tensor, gate: Tensor | None, w: AttentionWeights, w_mlp: MlpWeights, sizes: LayerSizes
) -> Tensor:
    """Apply gate, output projection and MLP with their residuals; returns [B, L, D]."""
    attended = attended_BHLE.transpose(1, 2).flatten(2)
    if gate is not None:
        attended = attended * torch.sigmoid(gate)
    return mlp(x_BLD + functional.linear(attended, w.o), w_mlp, sizes)


def attention_layer(
    x_BLD: Tensor, w: AttentionWeights, w_mlp: MlpWeights, cos_LR: Tensor, sin_LR: Tensor, sizes: LayerSizes
) -> Tensor:
    """Run one causal attention layer over a padded batch; returns [B, L, D]."""
    q, k, v, gate = project(x_BLD, w, cos_LR, sin_LR, sizes)
    attended = functional.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
    return finish(x_BLD, attended, gate, w, w_mlp, sizes)
