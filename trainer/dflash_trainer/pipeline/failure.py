"""First failure of any worker thread, with its name and exit code."""

from __future__ import annotations

import threading
from collections.abc import Callable

import torch

from dflash_trainer import compilation
from dflash_trainer.errors import DeviceError, TrainerError, WorkerError

_LOST = ("CUDA error", "NCCL error", "Xid", "device-side assert", "GPU is lost", "unspecified launch failure")


class FirstFailure:
    """Keeps the first error and calls `stop` once; later errors are consequences of the first."""

    def __init__(self, stop: Callable[[], None]) -> None:
        self._stop = stop
        self._lock = threading.Lock()
        self.worker = ""
        self.error: BaseException | None = None

    def record(self, worker: str, error: BaseException) -> None:
        """Remember `error` if it is the first."""
        with self._lock:
            if self.error is not None:
                return
            self.worker, self.error = worker, error
        self._stop()

    def raise_if_any(self) -> None:
        """Raise the first failure as a TrainerError, with the worker's traceback as its cause."""
        if self.error is not None:
            raise named_failure(self.worker, self.error) from self.error


def named_failure(worker: str, error: BaseException) -> TrainerError:
    """Return the TrainerError for an exception in `worker`; a TrainerError is returned unchanged."""
    if isinstance(error, TrainerError):
        return error
    text = f"{type(error).__name__}: {error}".strip()
    first = text.splitlines()[0]
    if isinstance(error, torch.OutOfMemoryError):
        return DeviceError(
            f"{worker}: {first}",
            "use a smaller data.batch_tokens, objective.num_anchors or runtime.queue_depth, "
            "or runtime.gradient_checkpointing = true",
            name="gpu_out_of_memory",
        )
    if any(mark in text for mark in _LOST):
        return DeviceError(f"{worker}: {first}", "check dmesg and nvidia-smi, then start again", name="gpu_lost")
    try:
        with compilation.named_compile_failures():
            raise error
    except TrainerError as named:
        return named
    except BaseException:
        return WorkerError(f"{worker}: {first}", "see the traceback")
