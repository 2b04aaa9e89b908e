"""Target worker: run the frozen target on the next batch and queue the hidden states for its drafter."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import torch

from dflash_trainer.data.prefetch import Prefetcher
from dflash_trainer.pipeline.states_queue import QueueClosed, StatesQueue
from dflash_trainer.pipeline.threads import enter_worker
from dflash_trainer.pipeline.worker_use import WorkerUse

if TYPE_CHECKING:
    from dflash_trainer.target import Target


class TargetWorker:
    """Fills the drafters' queues. Owner: Pipeline. Thread: one. Ends after the last batch or when a queue is closed."""

    def __init__(
        self,
        name: str,
        target: Target,
        batches: Prefetcher,
        queues: Sequence[StatesQueue],
        on_error: Callable[[str, BaseException], None],
    ) -> None:
        self.name = name
        self.target = target
        self.tokens = 0
        self.use = WorkerUse()
        self._batches = batches
        self._queues = queues
        self._on_error = on_error
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def join(self, timeout: float) -> bool:
        """Wait for the thread; return False when it is still running."""
        if self._thread.ident is not None:
            self._thread.join(timeout)
        return not self._thread.is_alive()

    def _run(self) -> None:
        try:
            enter_worker(self.target.device)
            while (loaded := self._batches.take()) is not None:
                started = time.perf_counter()
                states_BLX = self.target.capture(loaded.batch.input_ids_BL, loaded.batch.lengths_B)
                launched = time.perf_counter()
                self._finish_device()
                self.use = self.use.plus(busy=time.perf_counter() - started, host=launched - started)
                self.tokens += loaded.batch.tokens
                self._queues[loaded.work.drafter].put(loaded, states_BLX)
        except QueueClosed:
            pass
        except BaseException as error:
            self._on_error(self.name, error)

    def _finish_device(self) -> None:
        """Wait for the forward pass, so that queued states are complete and the busy time is exact."""
        if self.target.device.type == "cuda":
            torch.cuda.current_stream(self.target.device).synchronize()
