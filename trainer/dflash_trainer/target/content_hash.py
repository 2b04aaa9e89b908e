"""Hash of a target's loaded weights, independent of file format and path."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator

import torch
from torch import Tensor

from dflash_trainer.target.plan import TargetPlan
from dflash_trainer.target.weights import TargetWeights

_BITS = {2: torch.int16, 4: torch.int32}


def content_hash(plan: TargetPlan, weights: TargetWeights) -> str:
    """Return 16 hex digits: the hash of the plan's numbers and of the row sums of every loaded weight.

    The bits of a row are summed as integers. This is exact on every device, reads each weight once, and changes with
    any single weight.
    """
    numbers = (plan.kinds, plan.sizes, plan.delta_net, plan.inverse_frequencies, plan.rope_scale)
    digest = hashlib.sha256(repr(numbers).encode())
    for tensor in _tensors(weights):
        rows = tensor.view(_BITS[tensor.element_size()]).sum(-1, dtype=torch.int64)
        digest.update(repr(tuple(tensor.shape)).encode() + rows.cpu().numpy().tobytes())
    return digest.hexdigest()[:16]


def _tensors(weights: TargetWeights) -> Iterator[Tensor]:
    yield weights.embed
    if weights.head is not weights.embed:
        yield weights.head
    yield weights.final_norm
    for layer in weights.layers:
        yield from (tensor for half in layer for tensor in half if tensor is not None)
