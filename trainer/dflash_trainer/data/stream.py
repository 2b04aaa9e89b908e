"""Order in which a run consumes batches: training steps with evaluations in between.

All work is numbered, so batch k of a step goes to the same drafter regardless of thread timing.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from dflash_trainer.data.plan import BatchPlan, PlannedBatch


@dataclass(frozen=True)
class Work:
    """One batch assigned to a drafter; `turn` counts the batches of that drafter since the process started."""

    kind: Literal["train", "evaluate"]
    step: int
    drafter: int
    turn: int
    planned: PlannedBatch


@dataclass(frozen=True, kw_only=True)
class StreamShape:
    """Division of the work: nodes, rank of this node, drafters per node, batches per drafter and step."""

    nodes: int = 1
    rank: int = 0
    drafters: int = 1
    accumulate: int = 1

    @property
    def batches_per_step(self) -> int:
        """Batches per optimizer step over all nodes."""
        return self.nodes * self.drafters * self.accumulate


@dataclass(frozen=True, kw_only=True)
class StreamRange:
    """First and last step, first batch, and steps between evaluations (0: no evaluation)."""

    first_step: int
    last_step: int
    next_batch: int
    evaluate_every: int = 0


def work_stream(
    train: BatchPlan, evaluation: BatchPlan | None, shape: StreamShape, span: StreamRange
) -> Iterator[Work]:
    """Yield the batches of this node in the order of consumption."""
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
    """Return True when an evaluation follows this step; one always follows the last step."""
    return span.evaluate_every > 0 and (step % span.evaluate_every == 0 or step == span.last_step)


def evaluation_batches(plan: BatchPlan, shape: StreamShape) -> Iterator[tuple[int, PlannedBatch]]:
    """Yield (drafter, batch) for this node's share of one evaluation."""
    mine = range(shape.rank, plan.batches_per_epoch, shape.nodes)
    for index, number in enumerate(mine):
        yield index % shape.drafters, plan.batch(number)
