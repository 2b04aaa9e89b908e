"""Set-up of worker threads: device, Dynamo limits and CPU cores."""

from __future__ import annotations

import os

import torch

from dflash_trainer import compilation


def enter_worker(device: torch.device) -> None:
    """Select `device` for the calling thread and set Dynamo's per-thread limits."""
    compilation.configure_thread()
    if device.type == "cuda":
        torch.cuda.set_device(device)


def share_cores(cpu_workers: int) -> None:
    """Divide the cores among CPU workers, unless OMP_NUM_THREADS is set."""
    if cpu_workers and "OMP_NUM_THREADS" not in os.environ:
        torch.set_num_threads(max(1, len(os.sched_getaffinity(0)) // cpu_workers))
