"""What each worker thread does first, and how many cores it may use."""

from __future__ import annotations

import os

import torch

from dflash_trainer import compilation


def enter_worker(device: torch.device) -> None:
    """Make `device` the thread's own and set Dynamo's per-thread limits."""
    compilation.configure_thread()
    if device.type == "cuda":
        torch.cuda.set_device(device)


def share_cores(cpu_workers: int) -> None:
    """Split the cores among workers that compute on the CPU, unless OMP_NUM_THREADS says otherwise."""
    if cpu_workers and "OMP_NUM_THREADS" not in os.environ:
        torch.set_num_threads(max(1, len(os.sched_getaffinity(0)) // cpu_workers))
