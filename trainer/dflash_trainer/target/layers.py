"""The target's decoder layers as functions of tensors, for Llama, Qwen3 and Qwen3.5/3.6.

Each function is one compiled region on CUDA, shared by all layers of its kind. Sequences are padded on the right and
every layer is causal, so real tokens never see padding and no mask is needed.
"""

# Tensor letters: see dflash_trainer.model.

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional


class MlpWeights(NamedTuple):
    """The second half of every layer."""

    norm: Tensor
    gate: Tensor
    up: Tensor
    down: Tensor


class AttentionWeights(NamedTuple):
    """The first half of a full-attention layer; the head norms are None in Llama."""

    norm: Tensor
    q: Tensor
    k: Tensor
    v: Tensor
    o: Tensor
    q_norm: Tensor | None
    k_norm: Tensor | None


class LayerSizes(NamedTuple):
    """What a layer needs besides its tensors."""

    head_dim: int
    eps: float
    gated: bool
    """The query projection also gives a gate for the output (Qwen3.5)."""
    centred: bool
    """Norm weights are stored as differences from one (Qwen3.5)."""


def rms_norm(x: Tensor, weight: Tensor, sizes: LayerSizes) -> Tensor:
    """Root-mean-square norm over the last axis, statistics in fp32."""
    wide = x.float()
    wide = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + sizes.eps)
    return (wide * (1.0 + weight.float())).to(x.dtype) if sizes.centred else weight * wide.to(x.dtype)


def rotate(x_BLHE: Tensor, cos_LR: Tensor, sin_LR: Tensor) -> Tensor:
    """Rotate the first R of E channels (R = E unless the target rotates a part)."""
    width = cos_LR.shape[-1]
    turned, rest = x_BLHE[..., :width], x_BLHE[..., width:]
    first, second = turned.chunk(2, dim=-1)
    cos, sin = cos_LR[:, None].to(x_BLHE.dtype), sin_LR[:, None].to(x_BLHE.dtype)
    turned = turned * cos + torch.cat((-second, first), dim=-1) * sin
    return torch.cat((turned, rest), dim=-1)


def mlp(x_BLD: Tensor, w: MlpWeights, sizes: LayerSizes) -> Tensor:
    """x plus the gated MLP of its norm."""
    normed = rms_norm(x_BLD, w.norm, sizes)
    hidden = functional.silu(functional.linear(normed, w.gate)) * functional.linear(normed, w.up)
    return x_BLD + functional.linear(hidden, w.down)


def project(
    x_BLD: Tensor, w: AttentionWeights, cos_LR: Tensor, sin_LR: Tensor, sizes: LayerSizes
) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
    """Queries, keys, values [B, H or G, L, E] and the gate [B, L, H*E] of gated attention."""
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
    x_BLD: Tensor, mixed_BHLE: Tensor, gate: Tensor | None, w: AttentionWeights, w_mlp: MlpWeights, sizes: LayerSizes
) -> Tensor:
    """Gate, output projection and MLP, each with its residual."""
    mixed = mixed_BHLE.transpose(1, 2).flatten(2)
    if gate is not None:
        mixed = mixed * torch.sigmoid(gate)
    return mlp(x_BLD + functional.linear(mixed, w.o), w_mlp, sizes)


def attention_layer(
    x_BLD: Tensor, w: AttentionWeights, w_mlp: MlpWeights, cos_LR: Tensor, sin_LR: Tensor, sizes: LayerSizes
) -> Tensor:
    """A whole causal layer over a padded batch."""
    q, k, v, gate = project(x_BLD, w, cos_LR, sin_LR, sizes)
    mixed = functional.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
    return finish(x_BLD, mixed, gate, w, w_mlp, sizes)
