"""Finds the checkpoint to go on from and puts its state into the pipeline, on every box."""

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

Say = Callable[[str], None]


def find_checkpoint(own: CheckpointStore, earlier: Path | None, say: Say) -> Checkpoint | None:
    """The newest complete checkpoint of this run, else of the earlier one. Raises InputError when that has none."""
    found = own.newest(say)
    if found is None and earlier is not None:
        found = CheckpointStore(earlier, read_only=True).newest(say)
        if found is None:
            raise InputError(
                f"--resume-from = {str(earlier)!r}: no complete checkpoint there",
                "name the checkpoints folder of an earlier run, or leave it out to start afresh",
            )
    return found


def restore(pipeline: Pipeline, checkpoint: Checkpoint | None, dataset: Dataset, say: Say) -> Position:
    """Load `checkpoint` (the leader's, given to all boxes); a fresh Position without one."""
    boxes = pipeline.boxes
    now = run_fingerprint(pipeline, dataset)  # the target's weights are read here, before the memory of GPUs is watched
    saved = checkpoint.trainer() if checkpoint is not None and boxes.is_rank_zero else None
    text = boxes.broadcast_text(json.dumps(saved["position"] if saved else None))
    position = json.loads(text)
    if position is None:
        return Position()
    if checkpoint is not None and saved is not None:
        changed = differences(saved, now, pipeline.targets[0].shape, step=checkpoint.step)
        if changed:
            say(f"resume is not exact: {'; '.join(changed)}")
        pipeline.exchange.load(load_file(checkpoint.optimizer))
    boxes.broadcast_(tensor for _, tensor in pipeline.exchange.state())
    pipeline.exchange.copy_weights()
    return Position.from_dict(position)
