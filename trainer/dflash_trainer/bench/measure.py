"""Timing on one device: medians over several runs, device and host time separately."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

import torch

T = TypeVar("T")


@dataclass(frozen=True)
class Timing:
    """Milliseconds of one call: `total` until the device is done, `host` until the call returns."""

    total_ms: float
    host_ms: float
    fastest_ms: float
    slowest_ms: float


def time_call(call: Callable[[], object], device: torch.device, *, repeats: int, warmups: int = 2) -> Timing:
    """Return the medians over `repeats` synchronized calls, after `warmups` unmeasured ones."""
    for _ in range(warmups):
        call()
    totals, hosts = [], []
    for _ in range(repeats):
        wait(device)
        started = time.perf_counter()
        call()
        returned = time.perf_counter()
        wait(device)
        totals.append((time.perf_counter() - started) * 1e3)
        hosts.append((returned - started) * 1e3)
    return Timing(
        round(statistics.median(totals), 3),
        round(statistics.median(hosts), 3),
        round(min(totals), 3),
        round(max(totals), 3),
    )


def time_back_to_back(call: Callable[[], object], device: torch.device, *, repeats: int) -> float:
    """Return the milliseconds per call of `repeats` calls without synchronization, like the steps of a run."""
    wait(device)
    started = time.perf_counter()
    for _ in range(repeats):
        call()
    wait(device)
    return round((time.perf_counter() - started) * 1e3 / repeats, 3)


def time_after_idle(call: Callable[[], object], device: torch.device, *, repeats: int, pause: float = 2.0) -> float:
    """Return the milliseconds of a call after `pause` idle seconds, before the power limit lowers the clock."""
    totals = []
    for _ in range(repeats):
        wait(device)
        time.sleep(pause)
        totals.append(time_call(call, device, repeats=1, warmups=0).total_ms)
    return statistics.median(totals)


def wait(device: torch.device) -> None:
    """Synchronize `device`."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def peak_gb(device: torch.device) -> float:
    """Return the peak allocated memory since the last reset, in GB."""
    return round(torch.cuda.max_memory_allocated(device) / 1e9, 2) if device.type == "cuda" else 0.0


def allocated_gb(device: torch.device) -> float:
    """Return the allocated memory, in GB."""
    return round(torch.cuda.memory_allocated(device) / 1e9, 2) if device.type == "cuda" else 0.0


def reset_peak(device: torch.device) -> None:
    """Reset the peak memory counter."""
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)


def peak_during(call: Callable[[], T], device: torch.device) -> tuple[T, float]:
    """Return the result of `call` and its peak memory in GB."""
    reset_peak(device)
    result = call()
    wait(device)
    return result, peak_gb(device)


def machine(device: torch.device) -> dict[str, str]:
    """Return device, torch and CUDA version."""
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu"
    return {"device": name, "torch": torch.__version__, "cuda": str(torch.version.cuda)}
