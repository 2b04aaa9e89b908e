"""Timing on one device: medians of several runs, device time and host time apart."""

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
    """Milliseconds of one call: `total` until the device is done, `host` until Python is free again."""

    total_ms: float
    host_ms: float
    fastest_ms: float
    slowest_ms: float


def time_call(call: Callable[[], object], device: torch.device, *, repeats: int, warmups: int = 2) -> Timing:
    """Median over `repeats` calls, each waited for, after `warmups` that do not count."""
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


def time_unbroken(call: Callable[[], object], device: torch.device, *, repeats: int) -> float:
    """Milliseconds of a call among `repeats` that follow each other without a wait, as the steps of a run do."""
    wait(device)
    started = time.perf_counter()
    for _ in range(repeats):
        call()
    wait(device)
    return round((time.perf_counter() - started) * 1e3 / repeats, 3)


def time_rested(call: Callable[[], object], device: torch.device, *, repeats: int, pause: float = 2.0) -> float:
    """Milliseconds of a call after `pause` idle seconds: before the power limit has lowered the clock."""
    totals = []
    for _ in range(repeats):
        wait(device)
        time.sleep(pause)
        totals.append(time_call(call, device, repeats=1, warmups=0).total_ms)
    return statistics.median(totals)


def wait(device: torch.device) -> None:
    """Until everything queued on `device` is done."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def peak_gb(device: torch.device) -> float:
    """Most memory allocated since the last reset, in 10^9 bytes."""
    return round(torch.cuda.max_memory_allocated(device) / 1e9, 2) if device.type == "cuda" else 0.0


def allocated_gb(device: torch.device) -> float:
    """Memory allocated now, in 10^9 bytes."""
    return round(torch.cuda.memory_allocated(device) / 1e9, 2) if device.type == "cuda" else 0.0


def reset_peak(device: torch.device) -> None:
    """Forget the peak before this."""
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)


def peak_during(call: Callable[[], T], device: torch.device) -> tuple[T, float]:
    """What `call` returns, and its peak in 10^9 bytes."""
    reset_peak(device)
    result = call()
    wait(device)
    return result, peak_gb(device)


def machine(device: torch.device) -> dict[str, str]:
    """What the figures were measured on."""
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu"
    return {"device": name, "torch": torch.__version__, "cuda": str(torch.version.cuda)}
