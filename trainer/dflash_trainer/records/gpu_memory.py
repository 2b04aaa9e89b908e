"""Allocator counters of each GPU, which must not grow after the warm-up."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypedDict

import torch


class GpuMemory(TypedDict):
    """Memory of one GPU in bytes; counts are relative to mark()."""

    device: str
    allocated: int
    reserved: int
    device_allocations: int
    device_frees: int
    alloc_retries: int


_COUNTS = {
    "device_allocations": "num_device_alloc",
    "device_frees": "num_device_free",
    "alloc_retries": "num_alloc_retries",
}


class GpuMemoryWatch:
    """Counters of `devices` relative to the last mark()."""

    def __init__(self, devices: Sequence[str]) -> None:
        self._devices = [device for device in devices if device != "cpu"]
        self._base: dict[str, dict[str, int]] = {}
        self.mark()

    def mark(self) -> None:
        """Use the current counters as the new base."""
        for device in self._devices:
            stats = torch.cuda.memory_stats(device)
            self._base[device] = {name: int(stats.get(key, 0)) for name, key in _COUNTS.items()}

    def read(self) -> list[GpuMemory]:
        """Return one record per GPU; empty on CPU."""
        return [self._read(device) for device in self._devices]

    def _read(self, device: str) -> GpuMemory:
        stats = torch.cuda.memory_stats(device)
        since = {name: int(stats.get(key, 0)) - self._base[device][name] for name, key in _COUNTS.items()}
        return {
            "device": device,
            "allocated": int(stats.get("allocated_bytes.all.current", 0)),
            "reserved": int(stats.get("reserved_bytes.all.current", 0)),
            "device_allocations": since["device_allocations"],
            "device_frees": since["device_frees"],
            "alloc_retries": since["alloc_retries"],
        }
