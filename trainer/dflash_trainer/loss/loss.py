"""The objective of a batch: noise, draft, frozen head, weighted cross-entropy."""

# Tensor letters: see dflash_trainer.model.

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.nn import functional

from dflash_trainer.loss.accept import accept_length, accuracy_per_slot
from dflash_trainer.loss.fp8_head import Fp8Head
from dflash_trainer.loss.head import HeadProducts, PlainHead, WeightRule, head_loss
from dflash_trainer.loss.weights import decay_weights, dpace_weights
from dflash_trainer.model.drafter import Drafter, block_positions

if TYPE_CHECKING:
    from dflash_trainer.compilation import WorkerCompiler
    from dflash_trainer.config.schema import ObjectiveConfig


@dataclass(frozen=True)
class LossOutput:
    """What a batch gave; tensors stay on the device, so reading one waits for it.

    `loss` is a mean: the sum over slots divided by `weight`. To average over workers, weight by `weight`.
    """

    loss: Tensor
    weight: Tensor
    accept_len: Tensor
    accuracy_per_slot: Tensor


def draft_loss(
    drafter: Drafter,
    embed_weight: Tensor,
    head_weight: Tensor | HeadProducts,
    states_BLX: Tensor,
    input_ids_BL: Tensor,
    loss_mask_BL: Tensor,
    anchors_BN: Tensor,
    valid_BN: Tensor,
    objective: ObjectiveConfig,
    *,
    generator: torch.Generator | None = None,
) -> LossOutput:
    """Draft every block and compare with the text.

    Args:
        embed_weight, head_weight: the target's, frozen, [V, D], in the drafter's type and on its device; the head
            may also be prepared products (`prepared_head`).
        anchors_BN, valid_BN: as `draw_anchors` gives them.
        generator: source of the noise; needed when objective.noise_std is above 0.
    Returns:
        the loss, differentiable with respect to the drafter's parameters, and measures. A batch without
        supervised slots gives loss 0 and weight 0.
    """
    block = drafter.shape.block_size
    head = PlainHead(head_weight) if isinstance(head_weight, Tensor) else head_weight
    states_BLX = with_noise(states_BLX, objective.noise_std, generator)
    ids = block_inputs(input_ids_BL, anchors_BN, valid_BN, mask_token=drafter.shape.mask_token_id)
    hidden_BMD = drafter(functional.embedding(ids, embed_weight), states_BLX, anchors_BN, valid_BN)
    labels_BNW, supervised_BNW = block_labels(input_ids_BL, loss_mask_BL, anchors_BN, valid_BN, block=block)
    result = head_loss(
        hidden_BMD.flatten(0, 1),
        labels_BNW.flatten(),
        supervised_BNW.flatten(),
        head,
        weight_rule(objective, block),
        slots=block - 1,
        chunk=objective.head_chunk,
    )
    supervised = supervised_BNW.flatten(0, 1)
    weight = (supervised if objective.kind == "dpace" else result.weights).sum(dtype=torch.float32)
    return LossOutput(
        loss=result.total / weight.clamp(min=torch.finfo(torch.float32).tiny),
        weight=weight,
        accept_len=accept_length(result.correct, valid_BN.flatten()),
        accuracy_per_slot=accuracy_per_slot(result.correct, supervised),
    )


def prepared_head(head_weight: Tensor, objective: ObjectiveConfig, compiler: WorkerCompiler) -> HeadProducts:
    """The head's matrix products in the configured precision; make it once a worker."""
    return Fp8Head(head_weight, compiler) if objective.head_precision == "fp8" else PlainHead(head_weight)


def weight_rule(objective: ObjectiveConfig, block: int) -> WeightRule:
    """The configured weights as a function of a chunk's log-probabilities and supervision."""
    if objective.kind == "dpace":
        return partial(_dpace_rule, alpha=objective.alpha)
    return partial(_decay_rule, gamma=objective.resolved_gamma(block))


def _decay_rule(log_q: Tensor, supervised: Tensor, *, gamma: float) -> Tensor:
    return decay_weights(supervised, gamma)


def _dpace_rule(log_q: Tensor, supervised: Tensor, *, alpha: float) -> Tensor:
    return dpace_weights(log_q.exp(), supervised, alpha)


def with_noise(states: Tensor, std: float, generator: torch.Generator | None) -> Tensor:
    """Add normal noise of deviation `std`, drawn from `generator`."""
    if not std:
        return states
    if generator is None:
        raise ValueError("objective.noise_std is above 0: draft_loss needs a generator")
    noise = torch.randn(states.shape, dtype=states.dtype, device=states.device, generator=generator)
    return states + std * noise


def block_inputs(input_ids_BL: Tensor, anchors_BN: Tensor, valid_BN: Tensor, *, mask_token: int) -> Tensor:
    """What the slots hold: each block's anchor token, then MASK for all other slots, [B, N+1].

    A block that is left out has MASK in place of its anchor.
    """
    tokens = torch.where(valid_BN, input_ids_BL.gather(1, anchors_BN), mask_token)
    return functional.pad(tokens, (0, 1), value=mask_token)


def block_labels(
    input_ids_BL: Tensor, loss_mask_BL: Tensor, anchors_BN: Tensor, valid_BN: Tensor, *, block: int
) -> tuple[Tensor, Tensor]:
    """Slot k is to predict the token at anchor+k: (labels, supervised), [B, N, block-1] for k = 1..block-1."""
    rows, blocks = anchors_BN.shape
    length = input_ids_BL.shape[1]
    position = block_positions(anchors_BN, block).view(rows, blocks, block)[:, :, 1:]
    inside = position < length
    position = position.clamp(max=length - 1).flatten(1)
    labels = input_ids_BL.gather(1, position).view(rows, blocks, block - 1)
    supervised = (loss_mask_BL.gather(1, position) != 0).view(rows, blocks, block - 1)
    return labels, supervised & inside & valid_BN[:, :, None]
