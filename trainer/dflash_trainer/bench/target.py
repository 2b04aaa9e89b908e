"""Benchmark of the target's forward pass to its last captured layer."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import torch

from dflash_trainer import compilation
from dflash_trainer.bench.measure import machine, peak_gb, reset_peak, time_call, wait
from dflash_trainer.target import Target, load_target

if TYPE_CHECKING:
    from dflash_trainer.config.schema import Config


def bench_target(config: Config, repeats: int) -> dict[str, Any]:
    """Measure forward time with and without CUDA graphs, host time and memory of each bucket."""
    device = torch.device(config.target.devices[0])
    compilation.configure_thread(len(config.data.buckets))
    started = time.perf_counter()
    target = load_target(config, device)
    wait(device)
    loaded = round(time.perf_counter() - started, 2)
    results = [_bench_length(config, target, length, repeats) for length in config.data.buckets]
    return {
        "stage": "target",
        **machine(device),
        "load_s": loaded,
        "layers": target.captured[-1] + 1,
        "results": results,
    }


def _bench_length(config: Config, target: Target, length: int, repeats: int) -> dict[str, Any]:
    rows = config.data.batch_size(length)
    generator = torch.Generator(target.device).manual_seed(0)
    ids = torch.randint(target.shape.vocab_size, (rows, length), device=target.device, generator=generator)
    started = time.perf_counter()
    target.warm_up(rows, length)
    wait(target.device)
    first = time.perf_counter() - started
    reset_peak(target.device)
    timing = time_call(lambda: target.capture(ids), target.device, repeats=repeats)
    states = torch.empty(rows, length, target.width, dtype=target.dtype, device=target.device)
    plain = time_call(lambda: target.forward(ids, states), target.device, repeats=max(2, repeats // 3), warmups=1)
    return {
        "rows": rows,
        "length": length,
        "graph": target.graphs is not None,
        "forward_ms": timing.total_ms,
        "forward_ms_range": [timing.fastest_ms, timing.slowest_ms],
        "host_ms": timing.host_ms,
        "without_graph_ms": plain.total_ms,
        "without_graph_host_ms": plain.host_ms,
        "tokens_per_second": round(ids.numel() / timing.total_ms * 1e3, 1),
        "peak_gb": peak_gb(target.device),
        "first_call_s": round(first, 2),
    }
