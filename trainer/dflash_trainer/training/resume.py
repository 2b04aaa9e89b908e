"""Find the checkpoint to resume from and load it into the pipeline on every node."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

from safetensors.torch import load_file

from dflash_trainer.checkpoint import Checkpoint, CheckpointStore
from dflash_trainer.errors import InputError
from dflash_trainer.pipeline.pipeline import Dataset, Pipeline
from dflash_trainer.training.exactness import differences, run_fingerprint
from dflash_trainer.training.position import Position

Log = Callable[[str], None]


def find_checkpoint(own: CheckpointStore, earlier: Path | None, log: Log) -> Checkpoint | None:
    """Return the newest complete checkpoint of this run, else of the earlier run.

    Raises:
        InputError: the earlier run has no complete checkpoint.
    """
    found = own.newest(log)
    if found is None and earlier is not None:
        found = CheckpointStore(earlier, read_only=True).newest(log)
        if found is None:
            raise InputError(
                f"--resume-from = {str(earlier)!r}: it has no complete checkpoint",
                "name the checkpoints folder of an earlier run, or omit it to start from scratch",
            )
    return found


def restore(pipeline: Pipeline, checkpoint: Checkpoint | None, dataset: Dataset, log: Log) -> Position:
    """Load `checkpoint` on rank 0 and broadcast it; return its Position, or a new one without a checkpoint."""
    nodes = pipeline.nodes
    now = run_fingerprint(pipeline, dataset)  # reads the target's weights, before GPU memory is watched
    saved = checkpoint.trainer() if checkpoint is not None and nodes.is_rank_zero else None
    text = nodes.broadcast_text(json.dumps(saved["position"] if saved else None))
    position = json.loads(text)
    if position is None:
        return Position()
    if checkpoint is not None and saved is not None:
        changed = differences(saved, now, pipeline.targets[0].shape, step=checkpoint.step)
        if changed:
            log(f"resume is not exact: {'; '.join(changed)}")
        pipeline.exchange.load(load_file(checkpoint.optimizer))
    nodes.broadcast_(tensor for _, tensor in pipeline.exchange.state())
    pipeline.exchange.copy_weights()
    return Position.from_dict(position)
