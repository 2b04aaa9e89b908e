"""A drafter's step never synchronizes with the GPU, which always has work queued for the next step."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch
from dflash_trainer import compilation
from dflash_trainer.bench.drafter import DrafterBench
from dflash_trainer.config.load import load_config
from tiny_runs import REPO

LENGTH = 256
NEEDS_GPU = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU")
ON_GPU = pytest.param("cuda:0", marks=[pytest.mark.gpu, NEEDS_GPU])


@contextmanager
def synchronization_is_an_error(device: str) -> Iterator[None]:
    """Make every operation that synchronizes with the GPU raise."""
    if device == "cpu":
        yield
        return
    torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode("default")


def bench(device: str) -> DrafterBench:
    """Return a small drafter, compiled on a GPU."""
    compilation.configure_thread()
    values = {
        "target.path": '"random:qwen3.6-tiny"',
        "drafter.mask_token_id": "255",
        "drafter.num_heads": "4",
        "drafter.num_kv_heads": "2",
        "drafter.head_dim": "64",
        "drafter.sliding_window": "64",
        "drafter.devices": f'["{device}"]',
        "objective.num_anchors": "24",
        "data.buckets": f"[{LENGTH}]",
        "data.batch_tokens": str(LENGTH),
        "runtime.compile": str(device != "cpu").lower(),
    }
    config = load_config(REPO / "trainer/configs/bench-27b.toml", [f"{key}={value}" for key, value in values.items()])
    return DrafterBench(config, LENGTH, torch.device(device))


def copy_masters(drafter: DrafterBench) -> dict[str, torch.Tensor]:
    """Return copies of the fp32 masters by name."""
    return {name: value.clone() for name, value in drafter.masters.state() if name.endswith("/master")}


@pytest.mark.parametrize("device", ["cpu", ON_GPU])
def test_step_does_not_synchronize(device: str) -> None:
    """Reading the norm waits for an event after the backward pass, not for the update."""
    drafter = bench(device)
    drafter.step()
    drafter.step()
    compiled = compilation.compiled_graphs()
    before = copy_masters(drafter)
    with synchronization_is_an_error(device):
        drafter.step()
    assert compilation.compiled_graphs() == compiled
    assert all(not torch.equal(master, before[name]) for name, master in copy_masters(drafter).items())
