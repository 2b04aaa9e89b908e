"""The training loop: step, measure, evaluate, save, stop."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor

from dflash_trainer import compilation
from dflash_trainer.checkpoint import CheckpointWriter, Snapshot
from dflash_trainer.checkpoint.upload import Uploader
from dflash_trainer.config.schema import Config
from dflash_trainer.data.stream import StreamRange, evaluates_at
from dflash_trainer.errors import NanRunError
from dflash_trainer.optim.schedule import learning_rate, total_steps
from dflash_trainer.pipeline.drafter_worker import BatchReport
from dflash_trainer.pipeline.pipeline import Dataset, Pipeline
from dflash_trainer.records.gpu_memory import GpuMemoryWatch
from dflash_trainer.records.metrics import MetricsFile
from dflash_trainer.records.phase import RunState
from dflash_trainer.records.progress import duration
from dflash_trainer.records.trackers import Tracker
from dflash_trainer.training.exactness import run_fingerprint
from dflash_trainer.training.position import Position
from dflash_trainer.training.stop_signals import StopSignals


@dataclass(frozen=True)
class Records:
    """Outputs of a run; only rank 0 has checkpoints and trackers."""

    state: RunState
    metrics: MetricsFile
    trackers: Sequence[Tracker]
    writer: CheckpointWriter | None
    uploader: Uploader | None


@dataclass(frozen=True)
class StepTotals:
    """Totals of a step over all drafters and nodes."""

    weight: float
    loss: float
    accept_len: float
    tokens: int
    batches: int
    skipped: int
    bad_samples: int
    stop: bool


class Trainer:
    """Runs the steps from `position` to the last one, in one thread."""

    def __init__(
        self,
        config: Config,
        pipeline: Pipeline,
        dataset: Dataset,
        position: Position,
        records: Records,
        stop: StopSignals,
    ) -> None:
        self.config = config
        self.pipeline = pipeline
        self.dataset = dataset
        self.position = position
        self.records = records
        self.stop = stop
        per_step = pipeline.shape.batches_per_step
        self.total = total_steps(dataset.train_plan.batches_per_epoch, per_step, config.optimizer)
        self.span = StreamRange(
            first_step=position.step + 1,
            last_step=self.total,
            next_batch=position.next_batch,
            evaluate_every=config.evaluation.every_steps if dataset.evaluation_plan else 0,
        )
        self._memory = GpuMemoryWatch(config.devices)
        self._graphs = compilation.compiled_graphs()
        self._pace = 0.0
        self._target_rate = 0.0

    def run(self) -> bool:
        """Train to the end; return True when the last step was reached, False when a stop was requested."""
        state = self.records.state
        state.total_steps = self.total
        state.enter("training", f"step {self.position.step} of {self.total}", done=self.position.step, total=self.total)
        self.pipeline.start(self.dataset, self.span)
        while self.position.step < self.total:
            row, totals = self._step(self.position.step + 1)
            step = self.position.step
            if evaluates_at(step, self.span):
                row |= self._evaluate(step)
            self._record(row)
            nan_run = self.position.bad_run >= self.config.runtime.nan_limit
            if step % self.config.checkpoint.every_steps == 0 or step == self.total or totals.stop or nan_run:
                self._save(best="eval_accept_len" in row and self.position.best_step == step)
            if nan_run:
                raise _nan_run(self.position, self.config)
            if totals.stop:
                return False
        return True

    def _step(self, step: int) -> tuple[dict[str, Any], StepTotals]:
        """Run one optimizer step; return its metrics row and totals."""
        started = time.perf_counter()
        use = self.pipeline.target_use()
        depth = self.pipeline.queue_depth()
        reports = self.pipeline.train()
        totals = self._totals(reports)
        lr = learning_rate(step, self.total, self.config.optimizer)
        norm, applied = 0.0, False
        if totals.weight > 0:
            norm = self.pipeline.exchange.step(lr=lr, weight=totals.weight)
            applied = math.isfinite(norm)
        if not applied:
            totals = replace(totals, skipped=totals.batches)
        self._advance(step, totals)
        seconds = time.perf_counter() - started
        self._pace = seconds if not self._pace else 0.9 * self._pace + 0.1 * seconds
        row = self._row(step, totals, reports, seconds=seconds) | {"lr": lr, "grad_norm": norm, "queue_depth": depth}
        return row | {"target_tok_s": self._target_speed(use.tokens, use.busy_seconds)}, totals

    def _totals(self, reports: Sequence[BatchReport]) -> StepTotals:
        good = [report for report in reports if not report.skipped]
        weight, loss, accept, tokens, batches, skipped, samples, stop = self.pipeline.nodes.all_reduce_numbers(
            [
                sum(report.weight for report in good),
                sum(report.loss * report.weight for report in good),
                sum(report.accept_len * report.weight for report in good),
                sum(report.tokens for report in reports),
                len(reports),
                len(reports) - len(good),
                sum(report.bad_samples for report in reports),
                bool(self.stop.requested),
            ]
        )
        mean = (loss / weight, accept / weight) if weight > 0 else (math.nan, math.nan)
        counts = (int(tokens), int(batches), int(skipped), int(samples))
        return StepTotals(weight, *mean, *counts, stop > 0)

    def _advance(self, step: int, totals: StepTotals) -> None:
        before = self.position
        self.position = replace(
            before,
            step=step,
            next_batch=before.next_batch + self.pipeline.shape.batches_per_step,
            tokens=before.tokens + totals.tokens,
            skipped_batches=before.skipped_batches + totals.skipped,
            skipped_samples=before.skipped_samples + totals.bad_samples,
            bad_run=before.bad_run + totals.skipped if totals.skipped == totals.batches else 0,
        )
        self.records.state.step = step

    def _row(self, step: int, totals: StepTotals, reports: Sequence[BatchReport], *, seconds: float) -> dict[str, Any]:
        memory = self._memory.read()
        waited = max(
            sum(r.waited for r in reports[d :: len(self.pipeline.drafters)]) for d in range(len(self.pipeline.drafters))
        )
        return {
            "step": step,
            "time": time.time(),
            "epoch": (self.position.next_batch - 1) // self.dataset.train_plan.batches_per_epoch,
            "loss": totals.loss,
            "accept_len": totals.accept_len,
            "tokens": self.position.tokens,
            "tok_s": totals.tokens / seconds,
            "drafter_ms": (seconds - waited) * 1000,
            "waited_ms": waited * 1000,
            "gpus": memory,
            "workers": [use._asdict() | {"name": name} for name, use in self.pipeline.worker_use().items()],
            "device_allocs": {gpu["device"]: gpu["device_allocations"] for gpu in memory},
            "device_frees": {gpu["device"]: gpu["device_frees"] for gpu in memory},
            "recompiles": compilation.compiled_graphs() - self._graphs,
            "skipped_batches": self.position.skipped_batches,
            "skipped_samples": self.position.skipped_samples,
            "samples": [sample for report in reports for sample in report.sample_ids],
        }

    def _target_speed(self, tokens: int, busy: float) -> float:
        """Return the tokens per second that all target workers capture while they are busy."""
        use = self.pipeline.target_use()
        if use.busy_seconds > busy:
            self._target_rate = (use.tokens - tokens) / (use.busy_seconds - busy) * len(self.pipeline.targets)
        return self._target_rate

    def _evaluate(self, step: int) -> dict[str, Any]:
        """Return held-out loss and accept length over all nodes; keep the best in the position."""
        state, plan = self.records.state, self.dataset.evaluation_plan
        assert plan is not None
        state.enter("evaluating", f"step {step}, {plan.batches_per_epoch} batches", done=step, total=self.total)
        totals = self._totals(self.pipeline.evaluate(plan))
        if totals.accept_len > self.position.best_accept_len:
            self.position = replace(self.position, best_step=step, best_accept_len=totals.accept_len)
        detail = (
            f"held-out loss {totals.loss:.3f} accept {totals.accept_len:.3f} (best {self.position.best_accept_len:.3f})"
        )
        state.enter("training", detail, done=step, total=self.total)
        return {"eval_loss": totals.loss, "eval_accept_len": totals.accept_len}

    def _record(self, row: dict[str, Any]) -> None:
        """Append the step to all outputs; print it every `logging.every_steps`."""
        records = self.records
        row["checkpoint_failures"] = records.writer.failures if records.writer else 0
        row["uploads_done"] = records.uploader.done if records.uploader else 0
        row["uploads_failed"] = records.uploader.failures if records.uploader else 0
        records.metrics.append(row)
        numbers = {key: float(value) for key, value in row.items() if isinstance(value, (int, float))}
        for tracker in records.trackers:
            tracker.log(row["step"], numbers)
        step, every = self.position.step, self.config.logging.every_steps
        line = console_line(row, self.total, eta=(self.total - step) * self._pace)
        if step % every == 0 or step == self.total or row["step"] == self.span.first_step:
            print(line, flush=True)
        records.state.advance(line, done=step, total=self.total)

    def _save(self, *, best: bool) -> None:
        """Take a snapshot and pass it to the checkpoint writer."""
        writer = self.records.writer
        if writer is None:
            return
        self.records.state.advance(f"saving step {self.position.step}", done=self.position.step, total=self.total)
        drafter = self.pipeline.drafters[0]
        writer.write(
            Snapshot(
                step=self.position.step,
                weights={name: _copy(value) for name, value in drafter.parameters.items()},
                optimizer={name: _copy(value) for name, value in self.pipeline.exchange.state()},
                trainer=self._trainer_json(),
                best=best,
            )
        )

    def _trainer_json(self) -> dict[str, Any]:
        return {
            "position": self.position.to_dict(),
            "rng": {
                "scheme": "anchors and noise of a batch are drawn from runtime.seed and the batch number",
                "runtime_seed": self.config.runtime.seed,
                "data_seed": self.config.data.seed,
                "next_batch": self.position.next_batch,
            },
            **run_fingerprint(self.pipeline, self.dataset),
        }


def console_line(row: dict[str, Any], total: int, *, eta: float) -> str:
    """Return the console line of one step."""
    skipped = f" skipped {row['skipped_batches']}" if row["skipped_batches"] or row["skipped_samples"] else ""
    return (
        f"step {row['step']}/{total} loss {row['loss']:.3f} accept {row['accept_len']:.2f} tok/s {row['tok_s']:.0f} "
        f"lr {row['lr']:.2e} grad {row['grad_norm']:.2f} queue {row['queue_depth']}{skipped} eta {duration(eta)}"
    )


def _copy(tensor: Tensor) -> Tensor:
    """Return a CPU copy that training does not modify."""
    return tensor.detach().to("cpu", copy=True)


def _nan_run(position: Position, config: Config) -> NanRunError:
    return NanRunError(
        f"{position.bad_run} consecutive batches gave no finite loss or gradient "
        f"(runtime.nan_limit = {config.runtime.nan_limit}), last at step {position.step}",
        "see metrics.jsonl for the samples; lower optimizer.lr, or check data.path and target.dtype",
    )
