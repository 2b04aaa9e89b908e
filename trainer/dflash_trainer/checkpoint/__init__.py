"""Checkpoints that are whole or not there: written aside, verified, renamed; found again after any crash."""

from dflash_trainer.checkpoint.store import Checkpoint, CheckpointStore
from dflash_trainer.checkpoint.writer import CheckpointWriter, Snapshot

__all__ = ["Checkpoint", "CheckpointStore", "CheckpointWriter", "Snapshot"]
