"""What a drafter's step launches never makes the host wait: a GPU has work queued from one step to the next."""

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
WITHOUT = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU")
ON_GPU = pytest.param("cuda:0", marks=[pytest.mark.gpu, WITHOUT])


@contextmanager
def waits_are_errors(device: str) -> Iterator[None]:
    """Any copy or read that waits for the GPU raises."""
    if device == "cpu":
        yield
        return
    torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode("default")


def bench(device: str) -> DrafterBench:
    """A small drafter, with a GPU's kernels where there is one."""
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


def masters_of(made: DrafterBench) -> dict[str, torch.Tensor]:
    """Copies of the fp32 masters by name."""
    return {name: value.clone() for name, value in made.masters.state() if name.endswith("/master")}


@pytest.mark.parametrize("device", ["cpu", ON_GPU])
def test_a_step_is_launched_without_a_wait(device: str) -> None:
    """Its reading of the norm waits for an event behind the backward pass, not for the update."""
    made = bench(device)
    made.step()
    made.step()
    compiled = compilation.compiled_graphs()
    before = masters_of(made)
    with waits_are_errors(device):
        made.step()
    assert compilation.compiled_graphs() == compiled
    assert all(not torch.equal(master, before[name]) for name, master in masters_of(made).items())
