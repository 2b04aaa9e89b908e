"""Atomic checkpoints: written to a staging folder, verified, then renamed."""

from dflash_trainer.checkpoint.store import Checkpoint, CheckpointStore
from dflash_trainer.checkpoint.writer import CheckpointWriter, Snapshot

__all__ = ["Checkpoint", "CheckpointStore", "CheckpointWriter", "Snapshot"]
