"""What a target's weights are, in 16 letters: whatever file they came from, wherever it lies."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator

import torch
from torch import Tensor

from dflash_trainer.target.plan import TargetPlan
from dflash_trainer.target.weights import TargetWeights

_BITS = {2: torch.int16, 4: torch.int32}


def content_of(plan: TargetPlan, weights: TargetWeights) -> str:
    """Hash over what is computed with: the plan's numbers, and the sum of each row of every loaded weight.

    A row is summed as whole numbers, its bits read as such: that is exact on every device, reads each weight once, and
    no weight can change alone without changing it.
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
    for halves in weights.layers:
        yield from (tensor for half in halves for tensor in half if tensor is not None)
