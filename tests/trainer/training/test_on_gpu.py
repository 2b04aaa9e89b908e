"""Tests that need a GPU: reuse of ring buffers, and kernels that the warm-up did not compile."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from dflash_trainer.pipeline.states_queue import RingShape, StatesQueue
from tiny_runs import REPO

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU")]

SMALL = [
    *("--config", str(REPO / "trainer" / "configs" / "bench-27b.toml")),
    *("--set", "target.path='random:qwen3.6-tiny'", "--set", "drafter.devices=['cuda:0']"),
    *("--set", "drafter.mask_token_id=255", "--set", "drafter.num_heads=4", "--set", "drafter.num_kv_heads=2"),
    *("--set", "drafter.head_dim=32", "--set", "drafter.intermediate_size=256", "--set", "drafter.num_captured=2"),
    *("--set", "objective.num_anchors=16", "--set", "data.buckets=[256]", "--set", "data.batch_tokens=256"),
]


def batch(turn: int) -> Any:
    return SimpleNamespace(work=SimpleNamespace(turn=turn))


def test_states_in_use_are_not_overwritten() -> None:
    device = torch.device("cuda:0")
    queue = StatesQueue(device, 2, RingShape(tokens=8, width=4, dtype=torch.float32))
    weight = torch.ones(4, 3, device=device, requires_grad=True)
    queue.put(batch(0), torch.full((1, 8, 4), 2.0, device=device))
    loss = (queue.take().states_BLX @ weight).sum()
    queue.put(batch(1), torch.full((1, 8, 4), 5.0, device=device))
    loss.backward()
    queue.release()
    assert weight.grad is not None
    assert weight.grad.tolist() == [[16.0] * 3] * 4
    assert queue.take().states_BLX.flatten().tolist() == [5.0] * 32


def test_run_after_a_warm_up_compiles_nothing(tmp_path: Path) -> None:
    paths = [str(REPO / "trainer"), *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(paths)}
    trainer = [sys.executable, "-m", "dflash_trainer"]
    options = [*SMALL, "--cache-dir", str(tmp_path / "cache")]
    report = tmp_path / "bench.json"
    warmup = [*trainer, "warmup", *options, "--report", str(tmp_path / "warmup.json")]
    subprocess.run(warmup, check=True, env=environment)
    bench = [*trainer, "bench", "pipeline", *options, "--repeats", "4", "--json", str(report)]
    subprocess.run(bench, check=True, env=environment)
    figures = json.loads(report.read_text())
    assert figures["recompiles"] == 0
    assert (figures["cache"]["fxgraph_cache_miss"], figures["cache"]["autograd_cache_miss"]) == (0, 0)
