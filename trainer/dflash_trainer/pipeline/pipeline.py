"""The pipeline of target workers, queues and drafter workers: build, warm up, start, step, close."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, wait
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from dflash_trainer import compilation
from dflash_trainer.config.schema import Config
from dflash_trainer.data.arrow import ArrowSamples
from dflash_trainer.data.batches import read_batch
from dflash_trainer.data.plan import BatchPlan
from dflash_trainer.data.prefetch import LoadedBatch, Prefetcher
from dflash_trainer.data.stream import StreamRange, StreamShape, Work, evaluation_batches, work_stream
from dflash_trainer.pipeline.drafter_worker import BatchReport, DrafterWorker, FrozenEnds
from dflash_trainer.pipeline.exchange import Exchange
from dflash_trainer.pipeline.failure import FirstFailure
from dflash_trainer.pipeline.node_group import NodeGroup
from dflash_trainer.pipeline.states_queue import QueueClosed, RingShape, StatesQueue
from dflash_trainer.pipeline.target_worker import TargetWorker
from dflash_trainer.pipeline.warmup import DrafterSite, Log, place_drafter, warm
from dflash_trainer.pipeline.worker_use import WorkerUse

if TYPE_CHECKING:
    from dflash_trainer.target import Target

_JOIN_SECONDS = 30.0


@dataclass(frozen=True)
class Dataset:
    """Training and optional evaluation samples, each with its batch plan."""

    train: ArrowSamples
    train_plan: BatchPlan
    evaluation: ArrowSamples | None
    evaluation_plan: BatchPlan | None


@dataclass(frozen=True)
class TargetUse:
    """Totals of the target workers since the start."""

    tokens: int
    busy_seconds: float


class Pipeline:
    """All workers and their queues. Owner: train(). Threads: one per worker and the prefetcher; close() ends them."""

    def __init__(self, config: Config, targets: Sequence[Target], nodes: NodeGroup) -> None:
        self.config = config
        self.nodes = nodes
        self.targets = targets
        self._sites = [place_drafter(config, targets[0], device) for device in config.drafter.devices]
        self.failure = FirstFailure(self._stop)
        self.drafters = [self._drafter(index, site) for index, site in enumerate(self._sites)]
        self.exchange = Exchange(self.drafters, nodes, config.optimizer)
        self.shape = StreamShape(
            nodes=nodes.world_size,
            rank=nodes.rank,
            drafters=len(self.drafters),
            accumulate=config.optimizer.accumulate,
        )
        self._workers: list[TargetWorker] = []
        self._prefetcher: Prefetcher | None = None

    def warm(self, log: Log) -> None:
        """Compile every worker's shapes one after another, then forbid recompiles until close()."""
        warm(self.config, self.targets, self._sites, log=log)
        compilation.forbid_recompiles()

    def start(self, dataset: Dataset, span: StreamRange) -> None:
        """Start the prefetcher and the target workers on the batches of `span`."""
        evaluation = dataset.evaluation_plan if span.evaluate_every else None
        works = work_stream(dataset.train_plan, evaluation, self.shape, span)
        self._prefetcher = Prefetcher(self._load(dataset, works), depth=self.config.data.prefetch)
        queues = [drafter.queue for drafter in self.drafters]
        self._workers = [
            TargetWorker(f"target[{index}]", target, self._prefetcher, queues, self.failure.record)
            for index, target in enumerate(self.targets)
        ]
        self._prefetcher.start()
        for worker in self._workers:
            worker.start()

    def train(self) -> list[BatchReport]:
        """Train one step's batches on every drafter; return the reports in batch order."""
        count = self.config.optimizer.accumulate
        done = self._gather([drafter.submit(drafter.train, count) for drafter in self.drafters])
        return [report for turn in zip(*done, strict=True) for report in turn]

    def evaluate(self, plan: BatchPlan) -> list[BatchReport]:
        """Evaluate this node's share of the held-out batches, which the targets have already queued."""
        counts = [0] * len(self.drafters)
        for drafter, _ in evaluation_batches(plan, self.shape):
            counts[drafter] += 1
        futures = [d.submit(d.evaluate, count) for d, count in zip(self.drafters, counts, strict=True)]
        return [report for reports in self._gather(futures) for report in reports]

    def queue_depth(self) -> int:
        """Return the number of queued batches of hidden states, over all drafters."""
        return sum(len(drafter.queue) for drafter in self.drafters)

    def target_use(self) -> TargetUse:
        """Return the totals of this node's target workers."""
        return TargetUse(sum(w.tokens for w in self._workers), sum(w.use.busy_seconds for w in self._workers))

    def worker_use(self) -> dict[str, WorkerUse]:
        """Return the use of each worker of this node since the start, by name."""
        return {w.name: w.use for w in self._workers} | {d.name: d.use for d in self.drafters}

    def close(self) -> bool:
        """End every thread; return False when one does not end, for example on a lost GPU."""
        self._stop()
        if self._prefetcher is not None:
            self._prefetcher.close()
        deadline = time.monotonic() + _JOIN_SECONDS
        ended = [worker.join(max(0.0, deadline - time.monotonic())) for worker in self._workers]
        ended += [drafter.close(max(0.0, deadline - time.monotonic())) for drafter in self.drafters]
        compilation.allow_recompiles()
        return all(ended)

    def _drafter(self, index: int, site: DrafterSite) -> DrafterWorker:
        config, target = self.config, self.targets[0]
        tokens = max(bucket * config.data.batch_size(bucket) for bucket in config.data.buckets)
        ring = RingShape(tokens, target.width, target.dtype)
        queue = StatesQueue(site.device, config.runtime.queue_depth, ring)
        ends = FrozenEnds(site.embed, site.head)
        return DrafterWorker(f"drafter[{index}]", site.drafter, ends, queue, config.objective, seed=config.runtime.seed)

    def _load(self, dataset: Dataset, works: Iterator[Work]) -> Iterator[LoadedBatch]:
        vocab = self.targets[0].shape.vocab_size
        for work in works:
            samples = dataset.train if work.kind == "train" else dataset.evaluation
            assert samples is not None
            rows = self.config.data.batch_size(work.planned.bucket)
            yield LoadedBatch(work, read_batch(samples, work.planned, rows=rows, vocab_size=vocab))

    def _gather(self, futures: list[Future[list[BatchReport]]]) -> list[list[BatchReport]]:
        """Return the results in order, or raise the first failure of any worker with its traceback."""
        wait(futures, return_when=FIRST_EXCEPTION)
        for index, future in enumerate(futures):
            error = future.exception() if future.done() else None
            if error is not None and not isinstance(error, QueueClosed):
                self.failure.record(f"drafter[{index}]", error)
        self.failure.raise_if_any()
        return [future.result() for future in futures]

    def _stop(self) -> None:
        for drafter in self.drafters:
            drafter.queue.close()


def open_dataset(config: Config) -> Dataset:
    """Memory-map and check the data.

    Raises:
        InputError: naming the damaged file.
    """
    train = ArrowSamples.open(Path(config.data.path))
    evaluation = ArrowSamples.open(Path(config.data.eval_path)) if config.data.eval_path else None
    held_out = None
    if evaluation is not None:
        held_out = BatchPlan(evaluation.lengths[: config.evaluation.samples], config.data, shuffle=False)
    return Dataset(train, BatchPlan(train.lengths, config.data), evaluation, held_out)
