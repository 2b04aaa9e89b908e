"""GatedDeltaNet, the linear-attention layer of Qwen3.5/3.6: what surrounds the delta rule, and a reference for it.

On CUDA the rule itself is flash-linear-attention's kernel. All around it (norm, convolution, gates) is plain code
that compiles into a few kernels, so that no other kernel package is needed.
"""

# Tensor letters: see dflash_trainer.model.

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
    """Heads of a GatedDeltaNet layer."""

    key_heads: int
    value_heads: int
    key_dim: int
    value_dim: int


class DeltaNetWeights(NamedTuple):
    """The first half of a GatedDeltaNet layer."""

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


class DeltaNetState(NamedTuple):
    """What a sequence leaves behind: the last inputs of the convolution and the rule's memory."""

    conv_BTC: Tensor
    memory_BHEF: Tensor


class RuleInputs(NamedTuple):
    """What the delta rule takes: q, k [B,L,G,E] (normed), v [B,L,H,F], log decay and beta [B,L,H]."""

    q: Tensor
    k: Tensor
    v: Tensor
    decay: Tensor
    beta: Tensor


DeltaRule = Callable[[RuleInputs, Tensor | None, bool], tuple[Tensor, Tensor | None]]
"""(inputs, memory before, wanted after?) to (output [B,L,H,F], memory after or None)."""


def delta_net_inputs(
    x_BLD: Tensor,
    w: DeltaNetWeights,
    heads: DeltaNetSizes,
    sizes: LayerSizes,
    before_BTC: Tensor | None = None,
    *,
    all_inputs: bool = False,
) -> tuple[tuple[Tensor, ...], Tensor, Tensor]:
    """Everything before the rule: (fields of its inputs, gate z [B,L,H*F], the convolution's last inputs or all)."""
    normed = rms_norm(x_BLD, w.norm, sizes)
    mixed = functional.linear(normed, w.qkv)
    taps = w.conv.shape[-1]
    if before_BTC is None:
        mixed = functional.pad(mixed, (0, 0, taps - 1, 0))
    else:
        mixed = torch.cat((before_BTC, mixed), dim=1)
    last = mixed if all_inputs else mixed[:, 1 - taps :]
    q, k, v = causal_convolution(mixed, w.conv).split(
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
    return inputs, functional.linear(normed, w.z), last


def causal_convolution(padded_BTC: Tensor, weight_C1K: Tensor) -> Tensor:
    """Depthwise convolution and SiLU, channels last: a sum of shifted rows, so that it fuses with its neighbours."""
    taps = weight_C1K.shape[-1]
    length = padded_BTC.shape[1] - taps + 1
    total = padded_BTC[:, :length].float() * weight_C1K[:, 0, 0].float()
    for tap in range(1, taps):
        total = total + padded_BTC[:, tap : tap + length].float() * weight_C1K[:, 0, tap].float()
    return functional.silu(total).to(padded_BTC.dtype)


def unit_length(x: Tensor) -> Tensor:
    """x over its length along the last axis."""
    wide = x.float()
    return (wide * torch.rsqrt(wide.pow(2).sum(-1, keepdim=True) + _L2_EPS)).to(x.dtype)


def delta_net_outputs(
    x_BLD: Tensor, mixed_BLHF: Tensor, z_BLX: Tensor, w: DeltaNetWeights, w_mlp: MlpWeights, sizes: LayerSizes
) -> Tensor:
    """Everything after the rule: gated norm, output projection, MLP."""
    wide = mixed_BLHF.float()
    wide = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + sizes.eps) * w.out_norm.float()
    wide = wide * functional.silu(z_BLX.view(mixed_BLHF.shape).float())
    return mlp(x_BLD + functional.linear(wide.to(x_BLD.dtype).flatten(2), w.out), w_mlp, sizes)


def reference_delta_rule(
    inputs: RuleInputs, memory_BHEF: Tensor | None = None, keep: bool = False
) -> tuple[Tensor, Tensor | None]:
    """The gated delta rule in plain PyTorch, a chunk of 64 tokens at a time, in fp32.

    For each token: memory = exp(decay) * memory; memory += k (beta (v - memory k)); output = memory q / sqrt(E).
    Inside a chunk the corrections form a unit lower triangular system, solved at once.
    """
    q, k, v, decay, beta = (x.float().transpose(1, 2) for x in inputs)
    repeat = v.shape[1] // q.shape[1]
    q, k = q.repeat_interleave(repeat, 1) * q.shape[-1] ** -0.5, k.repeat_interleave(repeat, 1)
    memory = memory_BHEF.float() if memory_BHEF is not None else v.new_zeros(*k.shape[:2], k.shape[-1], v.shape[-1])
    outputs = []
    for start in range(0, q.shape[2], _CHUNK):
        part = slice(start, start + _CHUNK)
        inside = RuleInputs(*(x[:, :, part] for x in (q, k, v, decay, beta)))
        output, memory = _chunk_rule(inside, memory)
        outputs.append(output)
    result = torch.cat(outputs, dim=2).transpose(1, 2).to(inputs.v.dtype)
    return result, memory if keep else None


def _chunk_rule(inputs: RuleInputs, memory: Tensor) -> tuple[Tensor, Tensor]:
    """One chunk of T tokens; all [B, H, T, ...], memory [B, H, E, F]."""
    q, k, v, decay, beta = inputs
    total = decay.cumsum(-1)
    between = torch.exp((total[..., :, None] - total[..., None, :]).tril()).tril()
    grown = torch.exp(total)[..., None]
    system = (beta[..., None] * (k @ k.mT) * between).tril(-1)
    wanted = beta[..., None] * (v - (k * grown) @ memory)
    change = torch.linalg.solve_triangular(system, wanted, upper=False, unitriangular=True)
    output = (q * grown) @ memory + ((q @ k.mT) * between) @ change
    to_end = torch.exp(total[..., -1:] - total)[..., None]
    memory = memory * torch.exp(total[..., -1])[..., None, None] + (k * to_end).mT @ change
    return output, memory
