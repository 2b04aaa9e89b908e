"""Objective of a batch: noise, drafter, frozen head, weighted cross-entropy."""

# Tensor letters: see dflash_trainer/__init__.py.

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
    """Loss and metrics of a batch, as tensors on the device: reading one synchronizes.

    `loss` is the sum over slots divided by `weight`. To average over workers, weight each loss by its `weight`.
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
    """Draft every block and compare the predictions with the text.

    Args:
        drafter: the model to train.
        embed_weight: the target's frozen embedding, [V, D], in the drafter's dtype and on its device.
        head_weight: the target's frozen head, [V, D], or the result of `prepare_head`.
        states_BLX: hidden states of the captured layers.
        input_ids_BL: tokens of the batch.
        loss_mask_BL: nonzero where a token is supervised.
        anchors_BN: positions of the anchors, from `draw_anchors`.
        valid_BN: False for padding blocks.
        objective: the [objective] section.
        generator: source of the noise; required when objective.noise_std is above 0.

    Returns:
        The loss, differentiable with respect to the drafter's parameters, and metrics. A batch without supervised
        slots has loss 0 and weight 0.
    """
    block = drafter.shape.block_size
    head = PlainHead(head_weight) if isinstance(head_weight, Tensor) else head_weight
    states_BLX = with_noise(states_BLX, objective.noise_std, generator)
    ids_BU = block_inputs(input_ids_BL, anchors_BN, valid_BN, mask_token=drafter.shape.mask_token_id)
    hidden_MD = drafter(functional.embedding(ids_BU, embed_weight), states_BLX, anchors_BN, valid_BN).flatten(0, 1)
    labels_BNW, supervised_BNW = block_labels(input_ids_BL, loss_mask_BL, anchors_BN, valid_BN, block=block)
    result = head_loss(
        hidden_MD,
        labels_BNW.flatten(),
        supervised_BNW.flatten(),
        head,
        weight_rule(objective, block),
        slots=block - 1,
        chunk=objective.head_chunk,
    )
    supervised_AW = supervised_BNW.flatten(0, 1)
    weight = (supervised_AW if objective.kind == "dpace" else result.weights).sum(dtype=torch.float32)
    return LossOutput(
        loss=result.total / weight.clamp(min=torch.finfo(torch.float32).tiny),
        weight=weight,
        accept_len=accept_length(result.correct, valid_BN.flatten()),
        accuracy_per_slot=accuracy_per_slot(result.correct, supervised_AW),
    )


def prepare_head(head_weight: Tensor, objective: ObjectiveConfig, compiler: WorkerCompiler) -> HeadProducts:
    """Return the matmuls with the head in the configured precision; called once per worker."""
    return Fp8Head(head_weight, compiler) if objective.head_precision == "fp8" else PlainHead(head_weight)


def weight_rule(objective: ObjectiveConfig, block: int) -> WeightRule:
    """Return the configured slot weights as a function of log-probabilities and supervision."""
    if objective.kind == "dpace":
        return partial(_dpace_rule, alpha=objective.alpha)
    return partial(_decay_rule, gamma=objective.resolved_gamma(block))


def _decay_rule(log_q_AW: Tensor, supervised_AW: Tensor, *, gamma: float) -> Tensor:
    return decay_weights(supervised_AW, gamma)


def _dpace_rule(log_q_AW: Tensor, supervised_AW: Tensor, *, alpha: float) -> Tensor:
    return dpace_weights(log_q_AW.exp(), supervised_AW, alpha)


def with_noise(states: Tensor, std: float, generator: torch.Generator | None) -> Tensor:
    """Add Gaussian noise with standard deviation `std` to `states` (any shape)."""
    if not std:
        return states
    if generator is None:
        raise ValueError("objective.noise_std is above 0: draft_loss needs a generator")
    noise = torch.randn(states.shape, dtype=states.dtype, device=states.device, generator=generator)
    return states + std * noise


def block_inputs(input_ids_BL: Tensor, anchors_BN: Tensor, valid_BN: Tensor, *, mask_token: int) -> Tensor:
    """Return the distinct input tokens of the blocks, [B, U]: one anchor token per block, then the mask token.

    A padding block has the mask token in place of its anchor.
    """
    tokens_BN = torch.where(valid_BN, input_ids_BL.gather(1, anchors_BN), mask_token)
    return functional.pad(tokens_BN, (0, 1), value=mask_token)


def block_labels(
    input_ids_BL: Tensor, loss_mask_BL: Tensor, anchors_BN: Tensor, valid_BN: Tensor, *, block: int
) -> tuple[Tensor, Tensor]:
    """Return labels and supervised, each [B, N, W]: slot k = 1 .. K-1 predicts the token at anchor+k."""
    rows, blocks = anchors_BN.shape
    length = input_ids_BL.shape[1]
    position = block_positions(anchors_BN, block).view(rows, blocks, block)[:, :, 1:]
    inside = position < length
    position = position.clamp(max=length - 1).flatten(1)
    labels = input_ids_BL.gather(1, position).view(rows, blocks, block - 1)
    supervised = (loss_mask_BL.gather(1, position) != 0).view(rows, blocks, block - 1)
    return labels, supervised & inside & valid_BN[:, :, None]
