"""Profile a drafter step: kernels by kind, matrix products by shape, idle time of the device; needs a GPU.

    TRAINER_ENV/bin/python bench/drafter_profile.py [--json FILE] [--set section.key=value] [--steps 4]

The step is that of `bench drafter`. Kernels are profiled over consecutive steps; the step time is measured separately,
without the profiler. Each matrix product is listed with the TFLOP/s it reached.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections import defaultdict
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "trainer"))

CONFIG = Path(__file__).resolve().parent.parent / "trainer" / "configs" / "bench-27b.toml"
KINDS = (
    ("attention backward", ("flex_attention_backward",)),
    ("attention", ("flex_attention",)),
    ("matrix products", ("nvjet", "gemm", "cutlass", "cublas", "splitK")),
    ("vocabulary", ("_row_terms", "_gradient")),
    ("copies", ("Memcpy", "Memset")),
    ("generated", ("triton_",)),
)
"""Parts of kernel names by kind; the first match counts, all others are small kernels."""
PRODUCTS = ("aten::mm", "aten::addmm", "aten::_scaled_mm")


def main() -> int:
    """Profile, print the figures, write them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--config", type=Path, default=CONFIG)
    parser.add_argument("--set", action="append", default=[], metavar="section.key=value")
    parser.add_argument("--steps", type=int, default=4)
    parser.add_argument("--cache-dir", type=Path, help="compile caches")
    parser.add_argument("--json", type=Path, help="file for the figures")
    arguments = parser.parse_args()
    found = measure(arguments)
    print(json.dumps(found, indent=2), flush=True)
    if arguments.json:
        arguments.json.write_text(json.dumps(found, indent=2) + "\n", encoding="utf-8")
    return 0


def measure(arguments: argparse.Namespace) -> dict[str, Any]:
    """Return milliseconds per step by kind of kernel, and the matrix products by shape."""
    from dflash_trainer.cli import set_cache_folders

    set_cache_folders(arguments.cache_dir)
    import torch
    from dflash_trainer import compilation
    from dflash_trainer.bench.drafter import DrafterBench
    from dflash_trainer.bench.measure import machine, time_back_to_back
    from dflash_trainer.config.load import load_config

    fixed = ["drafter.devices=['cuda:0']", "data.buckets=[4096]"]
    config = load_config(arguments.config, [*fixed, *arguments.set])
    device = torch.device("cuda:0")
    compilation.configure_thread(1)
    bench = DrafterBench(config, config.data.buckets[-1], device)
    for _ in range(6):
        bench.step()
    step = time_back_to_back(bench.step, device, repeats=12)
    passes = profile(bench.forward_backward, arguments.steps)
    optimizer = profile(bench.optimize, arguments.steps)
    kinds = by_kind(passes, arguments.steps) | {"optimizer": sum(by_kind(optimizer, arguments.steps).values())}
    busy, products = sum(kinds.values()), by_shape(passes, arguments.steps)
    return {
        **machine(device),
        "step_ms": step,
        "kernel_ms": round(busy, 2),
        "idle_ms": round(step - busy, 2),
        "kinds_ms": {kind: round(ms, 2) for kind, ms in sorted(kinds.items(), key=lambda item: -item[1])},
        "tflop": total_flop(products),
        "products": products,
    }


def profile(call: Callable[[], object], steps: int) -> Any:
    """Return the kernels and operators of `steps` consecutive calls."""
    import torch
    from torch.profiler import ProfilerActivity

    activities = [ProfilerActivity.CPU, ProfilerActivity.CUDA]
    call()
    with torch.profiler.profile(activities=activities, record_shapes=True) as found:
        for _ in range(steps):
            call()
        torch.cuda.synchronize()
    return found


def by_kind(found: Any, steps: int) -> dict[str, float]:
    """Return milliseconds per step, by kind of kernel."""
    from torch.autograd import DeviceType

    total: dict[str, float] = defaultdict(float)
    for event in found.events():
        if event.device_type == DeviceType.CUDA and not event.is_user_annotation:
            total[kind_of(event.name)] += event.time_range.elapsed_us() / 1e3 / steps
    return total


def kind_of(name: str) -> str:
    """Return the kind of a kernel."""
    return next((kind for kind, parts in KINDS if any(part in name for part in parts)), "small kernels")


def by_shape(found: Any, steps: int) -> list[dict[str, Any]]:
    """Return calls per step, milliseconds per step and TFLOP/s of every product shape, slowest first."""
    rows = []
    for row in found.key_averages(group_by_input_shape=True):
        if row.key in PRODUCTS and row.device_time_total:
            sizes = row.input_shapes[1:3] if row.key == "aten::addmm" else row.input_shapes[:2]
            flop = 2 * math.prod(sizes[0]) * sizes[1][1] * row.count
            ms = row.device_time_total / 1e3
            shape = f"{sizes[0][0]} x {sizes[0][1]} x {sizes[1][1]}"
            rows.append(
                {
                    "product": f"{row.key.removeprefix('aten::')} {shape}",
                    "calls": row.count / steps,
                    "ms": round(ms / steps, 2),
                    "tflops": round(flop / ms / 1e9, 1),
                }
            )
    return sorted(rows, key=lambda row: -row["ms"])


def total_flop(rows: Iterable[dict[str, Any]]) -> float:
    """Return the TFLOP of all products of a step."""
    return round(sum(row["tflops"] * row["ms"] for row in rows) / 1e3, 1)


if __name__ == "__main__":
    sys.exit(main())
