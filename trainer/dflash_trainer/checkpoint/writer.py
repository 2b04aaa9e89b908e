"""Writes checkpoints behind the training: a snapshot is taken at once, the disk is waited for by a thread."""

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
    """State at the end of a step, in memory that training does not touch."""

    step: int
    weights: Mapping[str, Tensor]
    optimizer: Mapping[str, Tensor]
    trainer: Mapping[str, Any]
    best: bool
    """It has the best evaluation so far."""


class CheckpointWriter:
    """Writes one snapshot at a time. Owner: Trainer. Thread: one a snapshot; wait() and close() join it.

    A failure (a full disk, say) leaves the last good checkpoint, is told to `say`, and is kept in `error` until a
    later write succeeds.
    """

    def __init__(
        self,
        store: CheckpointStore,
        *,
        keep: int,
        say: Callable[[str], None],
        on_written: Callable[[Checkpoint], None] = lambda checkpoint: None,
    ) -> None:
        self.store = store
        self.error: OSError | None = None
        self.failures = 0
        self.last: Checkpoint | None = None
        self._keep = keep
        self._say = say
        self._on_written = on_written
        self._thread: threading.Thread | None = None

    def write(self, snapshot: Snapshot) -> None:
        """Begin to write; waits for the snapshot before it."""
        self.wait()
        self._thread = threading.Thread(target=self._write, args=(snapshot,), name="checkpoint")
        self._thread.start()

    def wait(self) -> None:
        """Wait until nothing is being written."""
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
            kept = f"the last good one is {self.last.folder.name}" if self.last else "there is none before it"
            self._say(f"checkpoint of step {snapshot.step} NOT written ({error}); {kept}; training goes on")
            return
        self.error = None
        self.last = checkpoint
        self.store.rotate(self._keep)
        self._say(f"checkpoint step {snapshot.step} written: {checkpoint.folder}")
        self._on_written(checkpoint)


def write_checkpoint(store: CheckpointStore, snapshot: Snapshot) -> Checkpoint:
    """Write, verify and publish. Raises OSError, leaving nothing half done."""
    aside = store.aside(snapshot.step)
    try:
        files = {
            WEIGHTS: write_tensors(aside / WEIGHTS, snapshot.weights),
            OPTIMIZER: write_tensors(aside / OPTIMIZER, snapshot.optimizer),
            TRAINER: _write_trainer(aside / TRAINER, snapshot.trainer),
        }
        checkpoint = store.publish(aside, snapshot.step, files)
    except OSError:
        shutil.rmtree(aside, ignore_errors=True)
        raise
    if snapshot.best:
        store.point("best", checkpoint.folder)
    return checkpoint


def _write_trainer(file: Path, values: Mapping[str, Any]) -> FileRecord:
    file.write_text(json.dumps(values, indent=2) + "\n", encoding="utf-8")
    sync_file(file)
    return record_of(file)
