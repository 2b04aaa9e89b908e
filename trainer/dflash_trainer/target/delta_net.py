"""GatedDeltaNet, the linear-attention layer of Qwen3.5/3.6: all but the delta rule, and a reference of the rule.

On CUDA the delta rule is a flash-linear-attention kernel. The rest (norm, convolution, gates) is plain PyTorch that
compiles to a few kernels, so no other kernel package is needed.
"""

# Tensor letters: see dflash_trainer/__init__.py.

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from dflash_trainer.target.layers import LayerSizes, MlpWeights, mlp, rms_norm

_L2_EPS = 1e-6
_CHUNK = 64


class DeltaNetSizes(NamedTuple):
    """Numbers and dimensions of heads in a GatedDeltaNet layer: G, H, E, F."""

    key_heads: int
    value_heads: int
    key_dim: int
    value_dim: int


class DeltaNetWeights(NamedTuple):
    """Weights of the first half of a GatedDeltaNet layer."""

    norm: Tensor
    qkv: Tensor
    z: Tensor
    b: Tensor
    a: Tensor
    conv: Tensor
    decay_log: Tensor
    decay_bias: Tensor
    out_norm: Tensor
    out: Tensor


class RuleInputs(NamedTuple):
    """Inputs of the delta rule: normalised q, k [B, L, G, E]; v [B, L, H, F]; log decay, beta [B, L, H]."""

    q: Tensor
    k: Tensor
    v: Tensor
    decay: Tensor
    beta: Tensor


DeltaRule = Callable[[RuleInputs, Tensor | None, bool], tuple[Tensor, Tensor | None]]
"""(inputs, memory before, return the memory after?) -> (output [B, L, H, F], memory after or None).

A memory is [B, H, E, F].
"""


def delta_net_inputs(
    x_BLD: Tensor,
    w: DeltaNetWeights,
    heads: DeltaNetSizes,
    sizes: LayerSizes,
    before_BTC: Tensor | None = None,
    *,
    all_inputs: bool = False,
) -> tuple[tuple[Tensor, ...], Tensor, Tensor]:
    """Compute everything before the delta rule.

    Args:
        x_BLD: input of the layer.
        w: weights of the layer.
        heads: numbers and dimensions of heads.
        sizes: sizes of the layer.
        before_BTC: inputs of the convolution before this pass, T = taps - 1; None at the start of a sequence.
        all_inputs: return all inputs of the convolution instead of the last taps - 1.

    Returns:
        Fields of `RuleInputs`, output gate z [B, L, H*F], and inputs of the convolution [B, T, C].
    """
    normed = rms_norm(x_BLD, w.norm, sizes)
    qkv = functional.linear(normed, w.qkv)
    taps = w.conv.shape[-1]
    if before_BTC is None:
        qkv = functional.pad(qkv, (0, 0, taps - 1, 0))
    else:
        qkv = torch.cat((before_BTC, qkv), dim=1)
    kept = qkv if all_inputs else qkv[:, 1 - taps :]
    q, k, v = causal_convolution(qkv, w.conv).split(
        (heads.key_heads * heads.key_dim, heads.key_heads * heads.key_dim, heads.value_heads * heads.value_dim), dim=-1
    )
    decay = -torch.exp(w.decay_log.float()) * functional.softplus(
        functional.linear(normed, w.a).float() + w.decay_bias.float()
    )
    inputs = (
        unit_length(q.unflatten(-1, (heads.key_heads, heads.key_dim))).contiguous(),
        unit_length(k.unflatten(-1, (heads.key_heads, heads.key_dim))).contiguous(),
        v.unflatten(-1, (heads.value_heads, heads.value_dim)).contiguous(),
        decay,
        torch.sigmoid(functional.linear(normed, w.b)),
    )
    return inputs, functional.linear(normed, w.z), kept


def causal_convolution(padded_BTC: Tensor, weight: Tensor) -> Tensor:
    """Apply a depthwise convolution and SiLU, channels last; returns [B, L, C] with T = L + taps - 1.

    `weight` is [C, 1, taps]. The convolution is a sum of shifted inputs, which the compiler can fuse.
    """
    taps = weight.shape[-1]
    length = padded_BTC.shape[1] - taps + 1
    total = padded_BTC[:, :length].float() * weight[:, 0, 0].float()
    for tap in range(1, taps):
        total = total + padded_BTC[:, tap : tap + length].float() * weight[:, 0, tap].float()
    return functional.silu(total).to(padded_BTC.dtype)


def unit_length(x: Tensor) -> Tensor:
    """Return `x` divided by its L2 norm over the last axis."""
    wide = x.float()
    return (wide * torch.rsqrt(wide.pow(2).sum(-1, keepdim=True) + _L2_EPS)).to(x.dtype)


def delta_net_outputs(
    x_BLD: Tensor, output_BLHF: Tensor, z: Tensor, w: DeltaNetWeights, w_mlp: MlpWeights, sizes: LayerSizes
) -> Tensor:
    """Compute everything after the delta rule: norm, gate z [B, L, H*F], output projection, MLP; returns [B, L, D]."""
    wide = output_BLHF.float()
    wide = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + sizes.eps) * w.out_norm.float()
    wide = wide * functional.silu(z.view(output_BLHF.shape).float())
    return mlp(x_BLD + functional.linear(wide.to(x_BLD.dtype).flatten(2), w.out), w_mlp, sizes)


def reference_delta_rule(
    inputs: RuleInputs, memory_BHEF: Tensor | None = None, keep: bool = False
) -> tuple[Tensor, Tensor | None]:
    """Compute the gated delta rule in plain PyTorch and fp32, in chunks of 64 tokens; see `DeltaRule`.

    Per token: memory = exp(decay) * memory; memory += k (beta (v - memory k)); output = memory q / sqrt(E).
    Within a chunk, the corrections solve one unit lower triangular system.
    """
    q, k, v, decay, beta = (x.float().transpose(1, 2) for x in inputs)
    repeat = v.shape[1] // q.shape[1]
    q, k = q.repeat_interleave(repeat, 1) * q.shape[-1] ** -0.5, k.repeat_interleave(repeat, 1)
    memory = memory_BHEF.float() if memory_BHEF is not None else v.new_zeros(*k.shape[:2], k.shape[-1], v.shape[-1])
    outputs = []
    for start in range(0, q.shape[2], _CHUNK):
        part = slice(start, start + _CHUNK)
        chunk = RuleInputs(*(x[:, :, part] for x in (q, k, v, decay, beta)))
        output, memory = _chunk_rule(chunk, memory)
        outputs.append(output)
    result = torch.cat(outputs, dim=2).transpose(1, 2).to(inputs.v.dtype)
    return result, memory if keep else None


def _chunk_rule(inputs: RuleInputs, memory: Tensor) -> tuple[Tensor, Tensor]:
    """Compute one chunk of T tokens: inputs [B, H, T, ...], memory [B, H, E, F]."""
    q, k, v, decay, beta = inputs
    total = decay.cumsum(-1)
    between = torch.exp((total[..., :, None] - total[..., None, :]).tril()).tril()
    decayed = torch.exp(total)[..., None]
    system = (beta[..., None] * (k @ k.mT) * between).tril(-1)
    rhs = beta[..., None] * (v - (k * decayed) @ memory)
    change = torch.linalg.solve_triangular(system, rhs, upper=False, unitriangular=True)
    output = (q * decayed) @ memory + ((q @ k.mT) * between) @ change
    to_end = torch.exp(total[..., -1:] - total)[..., None]
    memory = memory * torch.exp(total[..., -1])[..., None, None] + (k * to_end).mT @ change
    return output, memory
