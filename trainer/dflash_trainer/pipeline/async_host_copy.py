"""Numbers on their way from a device to the host, or there, behind work that nobody waits for."""

from __future__ import annotations

import torch
from torch import Tensor


class AsyncHostCopy:
    """Copies a tensor to the host behind the work launched so far; read() waits for that and nothing launched later."""

    def __init__(self, numbers: Tensor) -> None:
        self._there: torch.cuda.Event | None = None
        if numbers.is_cuda:
            self._host = torch.empty(numbers.shape, dtype=numbers.dtype, pin_memory=True)
            self._host.copy_(numbers, non_blocking=True)
            self._there = torch.cuda.Event()
            self._there.record(torch.cuda.current_stream(numbers.device))
        else:
            self._host = numbers

    def read(self) -> Tensor:
        """The tensor on the host."""
        if self._there is not None:
            self._there.synchronize()
        return self._host


def to_device(numbers: Tensor, device: torch.device) -> Tensor:
    """`numbers` of the host on `device`; on CUDA the host does not wait for work launched before."""
    return numbers.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else numbers.to(device)
