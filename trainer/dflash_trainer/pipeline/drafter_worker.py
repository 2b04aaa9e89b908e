"""Drafter worker: forward and backward passes on its own replica, in its own thread."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ParamSpec, TypeVar

import torch
from torch import Tensor

from dflash_trainer.config.schema import ObjectiveConfig
from dflash_trainer.loss import LossOutput, draft_loss
from dflash_trainer.model.anchors import draw_anchors
from dflash_trainer.pipeline.async_host_copy import AsyncHostCopy, to_device
from dflash_trainer.pipeline.seeds import seed_for
from dflash_trainer.pipeline.states_queue import StatesBatch, StatesQueue
from dflash_trainer.pipeline.threads import enter_worker
from dflash_trainer.pipeline.worker_use import WorkerUse

if TYPE_CHECKING:
    from dflash_trainer.loss.head import HeadProducts
    from dflash_trainer.model.drafter import Drafter

P = ParamSpec("P")
T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class BatchReport:
    """Measures of one batch; loss and accept_len are means over its slots and blocks."""

    number: int
    sample_ids: tuple[int, ...]
    tokens: int
    loss: float
    weight: float
    accept_len: float
    accuracy_per_slot: tuple[float, ...]
    bad_samples: int
    """Samples excluded: invalid ids, no supervised token, or NaN/Inf in their hidden states."""
    skipped: bool
    """The batch contributed no gradient."""
    waited: float = 0.0
    """Seconds spent waiting for hidden states."""
    worked: float = 0.0
    """Seconds spent computing."""


@dataclass(frozen=True)
class FrozenEnds:
    """The target's embedding and head on a drafter's device, in the drafter's dtype."""

    embed_VD: Tensor
    head: Tensor | HeadProducts


class DrafterWorker:
    """Trains one replica. Owner: Pipeline. Thread: one, which runs the functions given to submit(). close() ends it."""

    def __init__(
        self, name: str, drafter: Drafter, ends: FrozenEnds, queue: StatesQueue, objective: ObjectiveConfig, seed: int
    ) -> None:
        self.name = name
        self.drafter = drafter
        self.queue = queue
        self.device = queue.device
        self.parameters: dict[str, torch.nn.Parameter] = dict(drafter.named_parameters())
        self._ends = ends
        self._objective = objective
        self._seed = seed
        self._generator = torch.Generator(self.device)
        self._sums: dict[str, Tensor] = {}
        self._read_seconds = 0.0
        self._ended: float | None = None
        self.use = WorkerUse()
        self._thread = ThreadPoolExecutor(1, name, initializer=enter_worker, initargs=(self.device,))

    def submit(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        """Run `function` in this worker's thread."""
        return self._thread.submit(function, *args, **kwargs)

    def close(self, timeout: float) -> bool:
        """Accept no more work and wait for the running function; return False when it does not end in time."""
        last = self._thread.submit(lambda: None)
        ended = bool(wait([last], timeout=timeout).done)
        self._thread.shutdown(wait=ended)
        return ended

    def train(self, count: int) -> list[BatchReport]:
        """Run forward and backward for `count` batches; gradients of weight * loss accumulate in the replica."""
        reports = []
        self._clear_gradients(count)
        for _ in range(count):
            reports.append(self._process(self._train_batch))
            if self._sums:
                self._accumulate()
        return reports

    def evaluate(self, count: int) -> list[BatchReport]:
        """Return the measures of `count` held-out batches; their anchors are the same at every evaluation.

        Gradients stay enabled although no backward pass runs, so that the warmed-up compiled code is used.
        """
        return [self._process(self._evaluate_batch) for _ in range(count)]

    def gradient(self, name: str) -> Tensor | None:
        """Return the sum of weight * gradient over the last step's batches; None when all were skipped."""
        return self._sums[name] if self._sums else self.parameters[name].grad

    def _clear_gradients(self, count: int) -> None:
        """Clear the gradients of the last step; accumulation over several batches uses fp32 sums."""
        for parameter in self.parameters.values():
            parameter.grad = None
        if count > 1 and not self._sums:
            self._sums = {name: torch.zeros_like(p, dtype=torch.float32) for name, p in self.parameters.items()}
        for total in self._sums.values():
            total.zero_()

    def forward(self, states_BLX: Tensor, ids_BL: Tensor, mask_BL: Tensor, *, seed: int) -> LossOutput:
        """Compute the loss of one batch; anchors and noise are drawn from `seed`."""
        self._generator.manual_seed(seed)
        anchors_BN, valid_BN = draw_anchors(mask_BL, self._objective.num_anchors, self._generator)
        return draft_loss(
            self.drafter,
            self._ends.embed_VD,
            self._ends.head,
            states_BLX,
            ids_BL,
            mask_BL,
            anchors_BN,
            valid_BN,
            self._objective,
            generator=self._generator,
        )

    def _process(self, work: Callable[[StatesBatch], BatchReport]) -> BatchReport:
        """Take a batch from the queue, process it, and release its slot."""
        started, self._read_seconds = time.perf_counter(), 0.0
        item = self.queue.take()
        taken = time.perf_counter()
        report = work(item)
        self.queue.release()
        ended = time.perf_counter()
        worked, between = ended - taken, started - (self._ended or started)
        self._ended = ended
        self.use = self.use.plus(busy=worked + between, host=worked - self._read_seconds)
        return replace(report, waited=taken - started, worked=worked)

    def _train_batch(self, item: StatesBatch) -> BatchReport:
        """Copy the measures to the host while the backward pass is launched, so that the device never waits."""
        number = item.loaded.work.planned.number
        output, bad_rows = self._masked_forward(item, seed_for(self._seed, 1, number))
        measures = _measures(output, bad_rows)
        (output.loss * output.weight).backward()  # type: ignore[no-untyped-call]
        report = self._read(item, measures)
        if report.skipped:
            for parameter in self.parameters.values():
                parameter.grad = None
        return report

    def _evaluate_batch(self, item: StatesBatch) -> BatchReport:
        number = item.loaded.work.planned.number
        output, bad_rows = self._masked_forward(item, seed_for(self._seed, 2, number))
        return self._read(item, _measures(output, bad_rows))

    def _read(self, item: StatesBatch, measures: AsyncHostCopy) -> BatchReport:
        """Return the report of a batch after its measures have arrived on the host."""
        started = time.perf_counter()
        report = _report(item, measures)
        self._read_seconds = time.perf_counter() - started
        return report

    def _masked_forward(self, item: StatesBatch, seed: int) -> tuple[LossOutput, Tensor]:
        """Run the forward pass without rows that hold NaN or Inf; also return the number of such rows."""
        batch = item.loaded.batch
        ids_BL, mask_BL = to_device(batch.input_ids_BL, self.device), to_device(batch.loss_mask_BL, self.device)
        mask_BL, bad_rows = without_bad_rows(item.states_BLX, mask_BL)
        return self.forward(item.states_BLX, ids_BL, mask_BL, seed=seed), bad_rows

    def _accumulate(self) -> None:
        """Add the replica's gradients to the fp32 sums, whatever the replica's dtype."""
        for name, parameter in self.parameters.items():
            if parameter.grad is not None:
                self._sums[name].add_(parameter.grad)
            parameter.grad = None


def without_bad_rows(states_BLX: Tensor, mask_BL: Tensor) -> tuple[Tensor, Tensor]:
    """Zero the states [B, L, X] of rows with NaN or Inf in place; return (mask [B, L] without them, their number)."""
    bad_B = ~torch.isfinite(states_BLX.sum(dim=(1, 2), dtype=torch.float32))
    states_BLX.masked_fill_(bad_B[:, None, None], 0.0)
    return mask_BL.masked_fill(bad_B[:, None], 0), bad_B.sum()


def _measures(output: LossOutput, bad_rows: Tensor) -> AsyncHostCopy:
    """Copy loss, weight, accept_len, number of bad rows and accuracy per slot to the host."""
    first = torch.stack([output.loss.detach().float(), output.weight.float(), output.accept_len.float(), bad_rows])
    return AsyncHostCopy(torch.cat([first, output.accuracy_per_slot.float()]))


def _report(item: StatesBatch, measures: AsyncHostCopy) -> BatchReport:
    """Build the report; a batch without a finite loss and a positive weight is skipped."""
    loss, weight, accept_len, bad, *slots = measures.read().tolist()
    batch = item.loaded.batch
    return BatchReport(
        number=batch.planned.number,
        sample_ids=batch.planned.sample_ids,
        tokens=batch.tokens,
        loss=loss,
        weight=weight,
        accept_len=accept_len,
        accuracy_per_slot=tuple(slots),
        bad_samples=int(bad) + len(batch.unusable),
        skipped=not (math.isfinite(loss) and math.isfinite(weight) and weight > 0),
    )
