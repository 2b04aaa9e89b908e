"""The order in which a run consumes batches: training steps, with evaluations between them.

Everything is numbered, so whatever the threads do, batch k of a step always goes to the same drafter.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from dflash_trainer.data.plan import BatchPlan, PlannedBatch


@dataclass(frozen=True)
class Work:
    """One batch on its way: `turn` counts a drafter's batches since the start of this process."""

    kind: Literal["train", "evaluate"]
    step: int
    drafter: int
    turn: int
    planned: PlannedBatch


@dataclass(frozen=True, kw_only=True)
class StreamShape:
    """Consumers of batches: nodes, this node's rank, drafters per node, and batches per drafter and step."""

    nodes: int = 1
    rank: int = 0
    drafters: int = 1
    accumulate: int = 1

    @property
    def batches_per_step(self) -> int:
        """Batches of one optimizer step over all nodes."""
        return self.nodes * self.drafters * self.accumulate


@dataclass(frozen=True, kw_only=True)
class StreamRange:
    """From which step and batch to which step; evaluation each `evaluate_every` steps (0: never)."""

    first_step: int
    last_step: int
    next_batch: int
    evaluate_every: int = 0


def work_stream(
    train: BatchPlan, evaluation: BatchPlan | None, shape: StreamShape, span: StreamRange
) -> Iterator[Work]:
    """This box's batches in the order that they are consumed."""
    turns = [0] * shape.drafters
    for step in range(span.first_step, span.last_step + 1):
        base = span.next_batch + (step - span.first_step) * shape.batches_per_step
        base += shape.rank * shape.drafters * shape.accumulate
        for index in range(shape.drafters * shape.accumulate):
            drafter = index % shape.drafters
            yield Work("train", step, drafter, turns[drafter], train.batch(base + index))
            turns[drafter] += 1
        if evaluation is not None and evaluates_at(step, span):
            for drafter, planned in evaluation_batches(evaluation, shape):
                yield Work("evaluate", step, drafter, turns[drafter], planned)
                turns[drafter] += 1


def evaluates_at(step: int, span: StreamRange) -> bool:
    """Whether held-out data is measured after this step; the last step always is."""
    return span.evaluate_every > 0 and (step % span.evaluate_every == 0 or step == span.last_step)


def evaluation_batches(plan: BatchPlan, shape: StreamShape) -> Iterator[tuple[int, PlannedBatch]]:
    """(drafter, batch) pairs of this box's part of one evaluation."""
    mine = range(shape.rank, plan.batches_per_epoch, shape.nodes)
    for index, number in enumerate(mine):
        yield index % shape.drafters, plan.batch(number)
