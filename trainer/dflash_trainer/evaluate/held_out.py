"""Accept length and acceptance per position on held-out text; all blocks of a batch are drafted at once."""

# Tensor letters: see dflash_trainer/__init__.py.

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.nn import functional

from dflash_trainer.data.arrow import ArrowSamples
from dflash_trainer.data.batches import Batch, read_batch
from dflash_trainer.data.plan import BatchPlan
from dflash_trainer.errors import InputError
from dflash_trainer.loss.head import HeadProducts, head_loss
from dflash_trainer.loss.loss import block_inputs, block_labels, weight_rule
from dflash_trainer.model.anchors import draw_anchors
from dflash_trainer.pipeline.drafter_worker import without_bad_rows
from dflash_trainer.pipeline.seeds import seed_for
from dflash_trainer.pipeline.warmup import DrafterSite
from dflash_trainer.records.progress import Progress
from dflash_trainer.target import Target

if TYPE_CHECKING:
    from dflash_trainer.config.schema import Config


@dataclass(frozen=True, kw_only=True)
class HeldOut:
    """Acceptance measured against the text of held-out samples."""

    samples: int
    blocks: int
    loss: float
    accept_len: float
    """Mean over blocks of 1 + number of leading correct slots; a slot past the answer's end counts as wrong."""
    acceptance_per_position: tuple[float, ...]
    """Share of blocks whose slots 1..k are all correct, for each k whose slot is part of an answer."""
    accuracy_per_position: tuple[float, ...]
    """Share of correct tokens at slot k, regardless of earlier slots."""


def measure_held_out(config: Config, target: Target, site: DrafterSite, head: HeadProducts) -> HeldOut:
    """Draft blocks on the first evaluation.samples samples of data.eval_path; the blocks are the same every time."""
    if not config.data.eval_path:
        raise InputError("data.eval_path is empty", "name a held-out dataset written by prepare")
    samples = ArrowSamples.open(Path(config.data.eval_path))
    plan = BatchPlan(samples.lengths[: config.evaluation.samples], config.data, shuffle=False)
    sums = _Sums(site.drafter.shape.block_size - 1, site.device)
    with Progress("held-out", plan.batches_per_epoch) as progress:
        for number in range(plan.batches_per_epoch):
            planned = plan.batch(number)
            rows = config.data.batch_size(planned.bucket)
            batch = read_batch(samples, planned, rows=rows, vocab_size=target.shape.vocab_size)
            _measure_batch(config, target, site, head, batch, sums)
            progress.advance(1)
    return sums.result(min(len(samples), config.evaluation.samples))


class _Sums:
    """Sums over batches, kept on the device."""

    def __init__(self, slots: int, device: torch.device) -> None:
        self.loss, self.weight, self.blocks, self.accepted = torch.zeros(4, dtype=torch.float64, device=device)
        self.correct, self.leading, self.supervised = torch.zeros(3, slots, dtype=torch.float64, device=device)

    def add(self, *, loss: Tensor, weight: Tensor, correct_AW: Tensor, supervised_AW: Tensor, valid_A: Tensor) -> None:
        leading_AW = correct_AW.long().cumprod(-1)
        self.loss += loss
        self.weight += weight
        self.blocks += valid_A.sum()
        self.accepted += ((leading_AW.sum(-1) + 1) * valid_A).sum()
        self.correct += correct_AW.sum(0)
        self.leading += leading_AW.sum(0)
        self.supervised += supervised_AW.sum(0)

    def result(self, samples: int) -> HeldOut:
        supervised = self.supervised.clamp(min=1)
        return HeldOut(
            samples=samples,
            blocks=int(self.blocks),
            loss=float(self.loss / self.weight.clamp(min=1e-12)),
            accept_len=float(self.accepted / self.blocks.clamp(min=1)),
            acceptance_per_position=tuple((self.leading / supervised).tolist()),
            accuracy_per_position=tuple((self.correct / supervised).tolist()),
        )


@torch.no_grad()
def _measure_batch(
    config: Config, target: Target, site: DrafterSite, head: HeadProducts, batch: Batch, sums: _Sums
) -> None:
    objective, shape = config.objective, site.drafter.shape
    block, device = shape.block_size, site.device
    states_BLX = target.capture(batch.input_ids_BL.to(target.device), batch.lengths_B).to(device)
    ids_BL = batch.input_ids_BL.to(device)
    mask_BL, _ = without_bad_rows(states_BLX, batch.loss_mask_BL.to(device))
    generator = torch.Generator(device).manual_seed(seed_for(config.runtime.seed, 2, batch.planned.number))
    anchors_BN, valid_BN = draw_anchors(mask_BL, objective.num_anchors, generator)
    ids_BU = block_inputs(ids_BL, anchors_BN, valid_BN, mask_token=shape.mask_token_id)
    hidden = site.drafter(functional.embedding(ids_BU, site.embed), states_BLX, anchors_BN, valid_BN)
    labels_BNW, supervised_BNW = block_labels(ids_BL, mask_BL, anchors_BN, valid_BN, block=block)
    supervised_AW = supervised_BNW.flatten(0, 1)
    result = head_loss(
        hidden.flatten(0, 1),
        labels_BNW.flatten(),
        supervised_AW.flatten(),
        head,
        weight_rule(objective, block),
        slots=block - 1,
        chunk=objective.head_chunk,
    )
    sums.add(
        loss=result.total,
        weight=(supervised_AW if objective.kind == "dpace" else result.weights).sum(),
        correct_AW=result.correct,
        supervised_AW=supervised_AW,
        valid_A=valid_BN.flatten(),
    )
