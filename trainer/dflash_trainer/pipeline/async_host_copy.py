"""Copies between device and host that do not block the host."""

from __future__ import annotations

import torch
from torch import Tensor


class AsyncHostCopy:
    """Asynchronous copy of a tensor to pinned host memory.

    The copy is queued on the current stream. read() waits for it, and not for work launched later.
    """

    def __init__(self, numbers: Tensor) -> None:
        self._done: torch.cuda.Event | None = None
        if numbers.is_cuda:
            self._host = torch.empty(numbers.shape, dtype=numbers.dtype, pin_memory=True)
            self._host.copy_(numbers, non_blocking=True)
            self._done = torch.cuda.Event()
            self._done.record(torch.cuda.current_stream(numbers.device))
        else:
            self._host = numbers

    def read(self) -> Tensor:
        """Return the tensor on the host."""
        if self._done is not None:
            self._done.synchronize()
        return self._host


def to_device(numbers: Tensor, device: torch.device) -> Tensor:
    """Return a host tensor on `device`; on CUDA the host does not wait for work launched before."""
    return numbers.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else numbers.to(device)
