"""Measure whether Python limits 5 + 3 workers in one process: many threads, small shapes, one GPU.

    TRAINER_ENV/bin/python bench/host_threads.py [--json FILE] [--targets 5] [--drafters 3] [--seconds 6]

Every target thread replays its own CUDA graph of the 27B-shaped target and every drafter thread runs complete steps.
The rate over all threads must exceed the rate that real batches need.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
import threading
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "trainer"))

LENGTH, ANCHORS = 64, 16
NEEDED_FORWARDS, NEEDED_STEPS = 10.9, 13.0
"""Forwards per second of five target GPUs at 1 x 4096, and steps per second of three drafters at 230 ms."""


def main() -> int:
    """Measure each worker alone, then all together."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--config", type=Path, default=Path(__file__).parents[1] / "trainer/configs/bench-27b.toml")
    parser.add_argument("--json", type=Path, help="file for the figures")
    parser.add_argument("--targets", type=int, default=5)
    parser.add_argument("--drafters", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=6.0)
    arguments = parser.parse_args()
    result = measure(arguments)
    print(json.dumps(result), flush=True)
    if arguments.json:
        arguments.json.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")
    return 0


def measure(arguments: argparse.Namespace) -> dict[str, Any]:
    """Return host and total time of one call of each kind, and rates with all threads running."""
    import torch
    from dflash_trainer import compilation
    from dflash_trainer.bench.drafter import DrafterBench
    from dflash_trainer.bench.measure import machine, time_call
    from dflash_trainer.config.load import load_config
    from dflash_trainer.target import load_target
    from dflash_trainer.target.target import Target

    device = torch.device("cuda:0")
    devices = ["target.devices=['cuda:0']", "drafter.devices=['cuda:0']"]
    sizes = [f"data.buckets=[{LENGTH}]", f"data.batch_tokens={LENGTH}", f"objective.num_anchors={ANCHORS}"]
    config = load_config(arguments.config, [*devices, *sizes, "optimizer.state_dtype=bfloat16"])
    compilation.configure_thread(4)
    first = load_target(config, device)
    targets = [Target(first.forward, device, first.dtype, lambda: None, graphed=True) for _ in range(arguments.targets)]
    for target in targets:
        target.warm_up(1, LENGTH)
    ids = torch.zeros(1, LENGTH, dtype=torch.int64, device=device)
    drafters = [DrafterBench(dataclasses.replace(config), LENGTH, device) for _ in range(arguments.drafters)]
    for drafter in drafters:
        drafter.step()
        drafter.step()
    compilation.forbid_recompiles()
    states = torch.empty(1, LENGTH, first.width, dtype=first.dtype, device=device)
    alone = {
        "target_graph": time_call(lambda: targets[0].capture(ids), device, repeats=20),
        "target_launches": time_call(lambda: first.forward(ids, states), device, repeats=5),
        "drafter": time_call(drafters[0].step, device, repeats=10),
    }
    rates = together([lambda t=t: t.capture(ids) for t in targets], [d.step for d in drafters], arguments.seconds)
    return {
        **machine(device),
        "length": LENGTH,
        "alone": {name: dataclasses.asdict(timing) for name, timing in alone.items()},
        "threads": {"targets": arguments.targets, "drafters": arguments.drafters},
        **rates,
        "needed": {"target_forwards_per_second": NEEDED_FORWARDS, "drafter_steps_per_second": NEEDED_STEPS},
    }


def together(targets: list[Any], drafters: list[Any], seconds: float) -> dict[str, float]:
    """Return calls per second of each kind; every worker has a thread and a CUDA stream."""
    counts = [0] * (len(targets) + len(drafters))
    stop = threading.Event()
    threads = [
        threading.Thread(target=_loop, args=(call, number, counts, stop), daemon=True)
        for number, call in enumerate([*targets, *drafters])
    ]
    for thread in threads:
        thread.start()
    time.sleep(1.0)
    before, started = list(counts), time.perf_counter()
    time.sleep(seconds)
    after, took = list(counts), time.perf_counter() - started
    stop.set()
    for thread in threads:
        thread.join()
    done = [b - a for a, b in zip(before, after)]
    return {
        "target_forwards_per_second": round(sum(done[: len(targets)]) / took, 2),
        "drafter_steps_per_second": round(sum(done[len(targets) :]) / took, 2),
    }


def _loop(call: Any, number: int, counts: list[int], stop: threading.Event) -> None:
    import torch
    from dflash_trainer import compilation

    compilation.configure_thread()
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        while not stop.is_set():
            call()
            stream.synchronize()
            counts[number] += 1


if __name__ == "__main__":
    sys.exit(main())
