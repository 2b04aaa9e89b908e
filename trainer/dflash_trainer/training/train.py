"""Train a drafter: check, build, warm up, train, close.

python -m dflash_trainer train --config configs/demo.toml --run-dir runs/demo
torchrun --nnodes 2 --nproc-per-node 1 ... -m dflash_trainer train --config ... --run-dir ...
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import torch

from dflash_trainer import compilation
from dflash_trainer.checkpoint import CheckpointStore, CheckpointWriter
from dflash_trainer.checkpoint.upload import Uploader
from dflash_trainer.config.requirements import check_against_target, check_space, checkpoint_bytes
from dflash_trainer.config.schema import Config
from dflash_trainer.config.target_shape import locate, read_shape
from dflash_trainer.errors import DeviceError, ExitCode, InputError, TrainerError
from dflash_trainer.files import write_json
from dflash_trainer.model.build import check_init_from
from dflash_trainer.pipeline.failure import named_failure
from dflash_trainer.pipeline.node_group import NodeGroup
from dflash_trainer.pipeline.pipeline import Dataset, Pipeline, open_dataset
from dflash_trainer.pipeline.threads import share_cores
from dflash_trainer.pipeline.warmup import compiles
from dflash_trainer.records.failure import report_failure
from dflash_trainer.records.heartbeat import Heartbeat
from dflash_trainer.records.metrics import MetricsFile
from dflash_trainer.records.phase import RunState
from dflash_trainer.records.trackers import open_trackers
from dflash_trainer.target import Target, load_target
from dflash_trainer.training.position import Position
from dflash_trainer.training.resume import find_checkpoint, restore
from dflash_trainer.training.stop_signals import StopSignals
from dflash_trainer.training.trainer import Records, Trainer


@dataclass(frozen=True)
class TrainOptions:
    """Options of the command line that are not part of the configuration."""

    run_dir: Path
    resume_from: Path | None = None


def train(config: Config, options: TrainOptions, stop: StopSignals | None = None) -> ExitCode:
    """Train to the end, to a signal, or to a failure, which is recorded; return the exit code.

    Args:
        stop: signal handlers already installed; without them they are installed for this run.
    """
    if stop is None:
        with StopSignals() as stop:
            return train(config, options, stop)
    nodes = NodeGroup.join(cuda="cuda" in config.drafter.devices[0])
    folder = options.run_dir if nodes.is_rank_zero else options.run_dir / f"node-{nodes.rank}"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "failure.json").unlink(missing_ok=True)
    state = RunState(folder)
    try:
        state.enter("imports", f"torch {torch.__version__}")
        with ExitStack() as closing:
            closing.callback(nodes.close)
            finished = _train(config, options, folder, nodes, state, stop, closing)
        state.enter("finished" if finished else "stopped", f"step {state.step}")
        return ExitCode.FINISHED
    except BaseException as error:
        if stop.before_training:  # whatever a library turned the signal's exception into
            stop.ignore()
            state.enter("stopped", f"{stop.requested} before the first step")
            return ExitCode.FINISHED
        if not isinstance(error, Exception):
            raise
        named = error if isinstance(error, TrainerError) else named_failure("trainer", error)
        if named is not error:
            named.__cause__ = error
        report_failure(named, folder)
        state.enter("failed", f"{named.name}: {named.message}")
        return named.exit_code


def _train(
    config: Config,
    options: TrainOptions,
    folder: Path,
    nodes: NodeGroup,
    state: RunState,
    stop: StopSignals,
    closing: ExitStack,
) -> bool:
    """Run all phases; return True when the last step was reached."""
    dataset = _check(config, options, folder, state)
    store = CheckpointStore(options.run_dir / "checkpoints")
    checkpoint = find_checkpoint(store, options.resume_from, _log) if nodes.is_rank_zero else None

    compilation.install_guards()
    share_cores(sum(device == "cpu" for device in config.target.devices + config.drafter.devices))
    targets = _load_targets(config, state)
    pipeline = Pipeline(config, targets, nodes)
    closing.callback(_close_pipeline, pipeline)
    position = restore(pipeline, checkpoint, dataset, _log)
    state.step = position.step
    _log(f"resuming from {checkpoint.folder}" if checkpoint else "starting from scratch")

    enter_first_steps(config, state)
    pipeline.warm(state.line)

    records = _open_records(config, folder, store, state, position, nodes)
    closing.callback(_close_records, records)
    stop.finish_steps()
    trainer = Trainer(config, pipeline, dataset, position, records, stop)
    finished = trainer.run()
    _finish_saving(records, state)
    return finished


def enter_first_steps(config: Config, state: RunState) -> None:
    """Enter the phase of the first step of every shape: `compile`, or `first_steps` when nothing is compiled."""
    if compiles(config):
        state.enter("compile", "every device and shape, serially")
    else:
        state.enter("first_steps", "every device and shape once; nothing is compiled")


def _check(config: Config, options: TrainOptions, folder: Path, state: RunState) -> Dataset:
    """Check the configuration, data, target and disk before GPUs are used."""
    write_json(folder / "config.json", config.to_dict())
    state.enter("dataset", config.data.path)
    if not config.data.path:
        raise InputError("data.path is empty", "name a dataset folder written by prepare")
    dataset = open_dataset(config)
    state.found(f"{len(dataset.train)} samples, {dataset.train_plan.batches_per_epoch} batches an epoch")
    shape = read_shape(locate(config.target.path))
    check_against_target(config, shape)
    check_init_from(config, shape)
    check_space(options.run_dir / "checkpoints", checkpoint_bytes(config, shape))
    _check_gpus(config)
    return dataset


def _check_gpus(config: Config) -> None:
    wanted = [int(device.removeprefix("cuda:")) for device in config.devices if device != "cpu"]
    if wanted and max(wanted) >= torch.cuda.device_count():
        raise DeviceError(
            f"the configuration names cuda:{max(wanted)}, torch sees {torch.cuda.device_count()} GPUs",
            "use a configuration for this box, or check nvidia-smi and CUDA_VISIBLE_DEVICES",
            name="gpu_missing",
        )


def _load_targets(config: Config, state: RunState) -> list[Target]:
    targets: list[Target] = []
    for number, device in enumerate(config.target.devices):
        state.enter("target_weights", f"{config.target.path} on {device}")
        # the library reads a whole GGUF file without reporting progress
        with Heartbeat(state, f"target[{number}] reading {config.target.path}") as heartbeat:
            targets.append(load_target(config, device, progress=_layer_progress(state, number, heartbeat)))
    return targets


def _layer_progress(state: RunState, number: int, heartbeat: Heartbeat) -> Callable[[int, int], None]:
    def progress(done: int, total: int) -> None:
        heartbeat.end()
        state.advance(f"target[{number}] layer {done}/{total}", done=done, total=total)

    return progress


def _open_records(
    config: Config, folder: Path, store: CheckpointStore, state: RunState, position: Position, nodes: NodeGroup
) -> Records:
    metrics = MetricsFile.resume(folder / "metrics.jsonl", position.step)
    if not nodes.is_rank_zero:
        return Records(state, metrics, (), None, None)
    uploader = Uploader(config.checkpoint.s3_uri, _log) if config.checkpoint.s3_uri else None
    writer = CheckpointWriter(
        store,
        keep=config.checkpoint.keep,
        log=_log,
        on_written=lambda checkpoint: uploader.add(checkpoint.folder) if uploader else None,
    )
    return Records(state, metrics, open_trackers(config, folder, _log), writer, uploader)


def _finish_saving(records: Records, state: RunState) -> None:
    """Wait for the last checkpoint. Raises TrainerError when it could not be written."""
    if records.writer is None:
        return
    state.enter("saving", f"step {state.step}")
    records.writer.wait()
    if records.writer.error is not None:
        raise TrainerError(
            f"the last checkpoint (step {state.step}) could not be written: {records.writer.error}",
            "free space on the mount of the run and start again: it resumes from the last complete checkpoint",
            name="checkpoint_failed",
        ) from records.writer.error


def _close_records(records: Records) -> None:
    if records.writer is not None:
        records.writer.close()
    if records.uploader is not None:
        records.uploader.close()
    for tracker in records.trackers:
        tracker.close()
    records.metrics.close()


def _close_pipeline(pipeline: Pipeline) -> None:
    if not pipeline.close():
        _log("a worker does not end; exiting without it")
        sys.stdout.flush()


def _log(line: str) -> None:
    print(line, flush=True)
