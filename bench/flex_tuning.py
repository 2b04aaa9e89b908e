"""Time flex_attention's kernels on the drafter's shapes for several tile sizes; needs a GPU.

    TRAINER_ENV/bin/python bench/flex_tuning.py [--json FILE] [--length 4096]

The fastest sets belong in KERNEL_OPTIONS of trainer/dflash_trainer/model/attention.py, the tile in mask_tiles.py.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "trainer"))

HEADS, KV_HEADS, HEAD_DIM, ANCHORS, BLOCK, WINDOW = 32, 8, 128, 512, 16, 2048


def candidates() -> list[tuple[int, dict[str, int]]]:
    """Return (tile of the mask, options), backward tiles first because they take most time. Empty: torch's choice."""
    backward = [
        (32, 64, 64, 32, 3, 4),
        (32, 64, 64, 32, 2, 4),
        (32, 64, 64, 32, 4, 4),
        (16, 64, 64, 16, 3, 4),
        (64, 64, 64, 64, 2, 4),
        (64, 64, 64, 64, 3, 4),
        (32, 64, 64, 32, 3, 8),
        (32, 128, 128, 32, 3, 4),
        (64, 128, 128, 64, 2, 8),
        (64, 128, 128, 64, 3, 8),
        (128, 128, 128, 128, 2, 8),
    ]
    forward = [(128, 64, 3, 4), (128, 64, 3, 8), (64, 128, 3, 4), (64, 64, 3, 4), (64, 64, 4, 4), (64, 32, 4, 4)]
    names = ("BLOCK_M1", "BLOCK_N1", "BLOCK_M2", "BLOCK_N2", "num_stages", "num_warps")
    sets = [{f"bwd_{name}": value for name, value in zip(names, values)} for values in backward]
    sets += [dict(zip(("fwd_BLOCK_M", "fwd_BLOCK_N", "fwd_num_stages", "fwd_num_warps"), f)) for f in forward]
    small = [options for options in sets if max(options.values()) <= 64]
    return [(128, {}), *((64, options) for options in small), *((128, options) for options in reversed(sets))]


def measure(tile: int, options: dict[str, int], length: int, window: int) -> dict[str, Any]:
    """Return milliseconds of the forward and the backward pass."""
    import torch
    from dflash_trainer.compilation import WorkerCompiler
    from dflash_trainer.model import attention, mask_tiles
    from dflash_trainer.model.anchors import draw_anchors

    torch._dynamo.reset()
    mask_tiles.TILE = attention.TILE = tile
    attention.KERNEL_OPTIONS.clear()
    attention.KERNEL_OPTIONS.update(options)
    generator = torch.Generator("cuda").manual_seed(0)
    mask = torch.ones(1, length, device="cuda")
    anchors, valid = draw_anchors(mask, ANCHORS, generator)
    layout = attention.BlockLayout(length, BLOCK, window)
    visible = attention.visibility(anchors, valid, layout)
    queries = ANCHORS * BLOCK
    shapes = ((queries, HEADS), (length + queries, KV_HEADS), (length + queries, KV_HEADS))
    q, k, v = (
        torch.randn(1, *s, HEAD_DIM, device="cuda", dtype=torch.bfloat16, generator=generator).requires_grad_()
        for s in shapes
    )
    gradient = torch.randn_like(q)
    flex = WorkerCompiler().compiled(attention.flex_over_tiles)
    forward = timed(lambda: attention.attend(q, k, v, visible, flex))
    both = timed(lambda: torch.autograd.grad(attention.attend(q, k, v, visible, flex), (q, k, v), gradient))
    found = {"forward_ms": forward, "backward_ms": round(both - forward, 3)}
    return {"tile": tile, "options": options, "window": window, **found}


def timed(call: Any) -> float:
    """Return the median of 12 calls in milliseconds."""
    import torch
    from dflash_trainer.bench.measure import time_call

    return time_call(call, torch.device("cuda"), repeats=12, warmups=3).total_ms


def main() -> int:
    """Measure every candidate; print and skip those that do not compile."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, help="file for the figures")
    parser.add_argument("--length", type=int, default=4096, help="context tokens")
    parser.add_argument("--seconds", type=float, default=480.0, help="start no candidate after this time")
    arguments = parser.parse_args()
    results, started = [], time.monotonic()
    for tile, options in candidates():
        if time.monotonic() - started > arguments.seconds:
            break
        try:
            results.append(measure(tile, options, arguments.length, WINDOW))
            print(results[-1], flush=True)
        except Exception as error:  # a candidate may need more shared memory than available
            print(tile, options, "failed:", str(error).splitlines()[0][:200], flush=True)
    best = {part: min(results, key=lambda result: result[part]) for part in ("forward_ms", "backward_ms")}
    print("best", best, flush=True)
    if arguments.json:
        arguments.json.write_text(json.dumps({"results": results, "best": best}, indent=2) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
