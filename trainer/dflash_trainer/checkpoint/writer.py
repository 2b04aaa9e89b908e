"""Write checkpoints in the background: the snapshot is taken immediately, a thread writes it."""

from __future__ import annotations

import json
import shutil
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from dflash_trainer.checkpoint.hashing import FileRecord, record_of
from dflash_trainer.checkpoint.store import OPTIMIZER, TRAINER, WEIGHTS, Checkpoint, CheckpointStore
from dflash_trainer.checkpoint.tensors import write_tensors
from dflash_trainer.files import sync_file


@dataclass(frozen=True)
class Snapshot:
    """State at the end of a step, in memory that training does not modify."""

    step: int
    weights: Mapping[str, Tensor]
    optimizer: Mapping[str, Tensor]
    trainer: Mapping[str, Any]
    best: bool
    """True for the best evaluation so far."""


class CheckpointWriter:
    """Writes one snapshot at a time. Owner: Trainer. Thread: one per snapshot; wait() and close() join it.

    A failure such as a full disk keeps the last complete checkpoint, is reported through `log`, and stays in `error`
    until a later write succeeds.
    """

    def __init__(
        self,
        store: CheckpointStore,
        *,
        keep: int,
        log: Callable[[str], None],
        on_written: Callable[[Checkpoint], None] = lambda checkpoint: None,
    ) -> None:
        self.store = store
        self.error: OSError | None = None
        self.failures = 0
        self.last: Checkpoint | None = None
        self._keep = keep
        self._log = log
        self._on_written = on_written
        self._thread: threading.Thread | None = None

    def write(self, snapshot: Snapshot) -> None:
        """Start writing; wait for the previous snapshot first."""
        self.wait()
        self._thread = threading.Thread(target=self._write, args=(snapshot,), name="checkpoint")
        self._thread.start()

    def wait(self) -> None:
        """Wait for the running write."""
        if self._thread is not None:
            self._thread.join()
            self._thread = None

    close = wait

    def _write(self, snapshot: Snapshot) -> None:
        try:
            checkpoint = write_checkpoint(self.store, snapshot)
        except OSError as error:
            self.error = error
            self.failures += 1
            kept = f"the last complete one is {self.last.folder.name}" if self.last else "no earlier one exists"
            self._log(f"checkpoint of step {snapshot.step} NOT written ({error}); {kept}; training continues")
            return
        self.error = None
        self.last = checkpoint
        self.store.rotate(self._keep)
        self._log(f"checkpoint step {snapshot.step} written: {checkpoint.folder}")
        self._on_written(checkpoint)


def write_checkpoint(store: CheckpointStore, snapshot: Snapshot) -> Checkpoint:
    """Write, verify and publish a checkpoint. Raises OSError and leaves no partial files."""
    staging = store.staging(snapshot.step)
    try:
        files = {
            WEIGHTS: write_tensors(staging / WEIGHTS, snapshot.weights),
            OPTIMIZER: write_tensors(staging / OPTIMIZER, snapshot.optimizer),
            TRAINER: _write_trainer(staging / TRAINER, snapshot.trainer),
        }
        checkpoint = store.publish(staging, snapshot.step, files)
    except OSError:
        shutil.rmtree(staging, ignore_errors=True)
        raise
    if snapshot.best:
        store.point("best", checkpoint.folder)
    return checkpoint


def _write_trainer(file: Path, values: Mapping[str, Any]) -> FileRecord:
    file.write_text(json.dumps(values, indent=2) + "\n", encoding="utf-8")
    sync_file(file)
    return record_of(file)
