"""A drafter worker: forward and backward on its own replica, in its own thread, one command at a time."""

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
    """What one batch gave; loss and accept_len are means over its slots and blocks."""

    number: int
    sample_ids: tuple[int, ...]
    tokens: int
    loss: float
    weight: float
    accept_len: float
    accuracy_per_slot: tuple[float, ...]
    bad_samples: int
    """Samples left out: unreadable ids, no answer, or hidden states that are not finite."""
    skipped: bool
    """The batch gave no gradient."""
    waited: float = 0.0
    """Seconds spent waiting for hidden states."""
    worked: float = 0.0
    """Seconds spent computing."""


@dataclass(frozen=True)
class FrozenEnds:
    """The target's embedding and head on a drafter's device, in the drafter's type."""

    embed_VD: Tensor
    head: Tensor | HeadProducts


class DrafterWorker:
    """Trains one replica. Owner: Pipeline. Thread: one, which runs what `submit` gives it. close() ends it."""

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
        self._reading = 0.0
        self._ended: float | None = None
        self.use = WorkerUse()
        self._thread = ThreadPoolExecutor(1, name, initializer=enter_worker, initargs=(self.device,))

    def submit(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        """Run `function` in this worker's thread."""
        return self._thread.submit(function, *args, **kwargs)

    def close(self, timeout: float) -> bool:
        """Take no more commands and wait for the one at work; False when it does not end."""
        last = self._thread.submit(lambda: None)
        ended = bool(wait([last], timeout=timeout).done)
        self._thread.shutdown(wait=ended)
        return ended

    def train(self, count: int) -> list[BatchReport]:
        """Forward and backward for `count` batches; gradients of weight * loss are summed into the replica."""
        reports = []
        self._clear_gradients(count)
        for _ in range(count):
            reports.append(self._one(self._train_batch))
            if self._sums:
                self._keep_sum()
        return reports

    def evaluate(self, count: int) -> list[BatchReport]:
        """Loss and measures of `count` held-out batches, always with the same anchors.

        Gradients stay enabled though none is taken: compiled code is then the one that was warmed.
        """
        return [self._one(self._evaluate_batch) for _ in range(count)]

    def gradient(self, name: str) -> Tensor | None:
        """Sum of weight * gradient over the last step's batches; None when all were skipped."""
        return self._sums[name] if self._sums else self.parameters[name].grad

    def _clear_gradients(self, count: int) -> None:
        """Drop what the last step left; several batches need fp32 sums."""
        for parameter in self.parameters.values():
            parameter.grad = None
        if count > 1 and not self._sums:
            self._sums = {name: torch.zeros_like(p, dtype=torch.float32) for name, p in self.parameters.items()}
        for total in self._sums.values():
            total.zero_()

    def forward(self, states_BLX: Tensor, ids_BL: Tensor, mask_BL: Tensor, *, seed: int) -> LossOutput:
        """The objective on one batch, its anchors and noise drawn from `seed`."""
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

    def _one(self, work: Callable[[StatesBatch], BatchReport]) -> BatchReport:
        """Take a batch, work on it, give its room back."""
        started, self._reading = time.perf_counter(), 0.0
        item = self.queue.take()
        taken = time.perf_counter()
        report = work(item)
        self.queue.release()
        ended = time.perf_counter()
        worked, between = ended - taken, started - (self._ended or started)
        self._ended = ended
        self.use = self.use.plus(busy=worked + between, host=worked - self._reading)
        return replace(report, waited=taken - started, worked=worked)

    def _train_batch(self, item: StatesBatch) -> BatchReport:
        """The measures travel while the backward pass is launched: the device never waits for them to be read."""
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
        """The report of a batch, once its measures are there."""
        started = time.perf_counter()
        report = _report(item, measures)
        self._reading = time.perf_counter() - started
        return report

    def _masked_forward(self, item: StatesBatch, seed: int) -> tuple[LossOutput, Tensor]:
        """Forward with the rows whose states are not finite taken out; returns how many there were."""
        batch = item.loaded.batch
        ids_BL, mask_BL = to_device(batch.input_ids_BL, self.device), to_device(batch.loss_mask_BL, self.device)
        mask_BL, bad_rows = without_bad_rows(item.states_BLX, mask_BL)
        return self.forward(item.states_BLX, ids_BL, mask_BL, seed=seed), bad_rows

    def _keep_sum(self) -> None:
        """Sum gradients of several batches in fp32, whatever the replica's type."""
        for name, parameter in self.parameters.items():
            if parameter.grad is not None:
                self._sums[name].add_(parameter.grad)
            parameter.grad = None


def without_bad_rows(states_BLX: Tensor, mask_BL: Tensor) -> tuple[Tensor, Tensor]:
    """Zero, in place, the states of rows with a value that is not finite; (mask without them, number of such rows)."""
    bad_B = ~torch.isfinite(states_BLX.sum(dim=(1, 2), dtype=torch.float32))
    states_BLX.masked_fill_(bad_B[:, None, None], 0.0)
    return mask_BL.masked_fill(bad_B[:, None], 0), bad_B.sum()


def _measures(output: LossOutput, bad_rows: Tensor) -> AsyncHostCopy:
    """loss, weight, accept_len, rows that were not finite, accuracy of each slot."""
    first = torch.stack([output.loss.detach().float(), output.weight.float(), output.accept_len.float(), bad_rows])
    return AsyncHostCopy(torch.cat([first, output.accuracy_per_slot.float()]))


def _report(item: StatesBatch, measures: AsyncHostCopy) -> BatchReport:
    """Judge whether the batch can be used."""
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
