"""Times flex_attention's kernels on the drafter's shapes for several tile sizes; needs a GPU.

    TRAINER_ENV/bin/python bench/flex_tuning.py [--json FILE] [--length 4096]

The fastest set belongs in KERNEL_OPTIONS of trainer/dflash_trainer/model/attention.py.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "trainer"))

HEADS, KV_HEADS, HEAD_DIM, ANCHORS, BLOCK, WINDOW = 32, 8, 128, 512, 16, 2048


def candidates() -> list[dict[str, int]]:
    """Backward tiles first: that is where the time goes. An empty set is torch's choice."""
    backward = [
        {},
        (64, 128, 128, 64, 2, 8),
        (64, 128, 128, 64, 3, 4),
        (64, 64, 64, 64, 3, 4),
        (64, 64, 64, 64, 2, 4),
        (32, 128, 128, 32, 3, 4),
        (32, 64, 64, 32, 3, 4),
        (128, 128, 128, 128, 2, 8),
    ]
    names = ("BLOCK_M1", "BLOCK_N1", "BLOCK_M2", "BLOCK_N2", "num_stages", "num_warps")
    return [{f"bwd_{n}": v for n, v in zip(names, values)} if values else {} for values in backward]


def measure(options: dict[str, int], length: int, window: int) -> dict[str, Any]:
    """Milliseconds of forward and of backward."""
    import torch
    from dflash_trainer.model import attention
    from dflash_trainer.model.anchors import draw_anchors

    torch._dynamo.reset()
    attention.compile_once.__globals__["_state"].compiled.clear()
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
    forward = timed(lambda: attention.attend(q, k, v, visible))
    both = timed(lambda: torch.autograd.grad(attention.attend(q, k, v, visible), (q, k, v), gradient))
    return {"options": options, "window": window, "forward_ms": forward, "backward_ms": round(both - forward, 3)}


def timed(call: Any) -> float:
    """Median of 12 calls in milliseconds."""
    import torch
    from dflash_trainer.bench.measure import time_call

    return time_call(call, torch.device("cuda"), repeats=12, warmups=3).total_ms


def main() -> int:
    """Try every candidate; one that does not compile is said and passed over."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, help="file for the figures")
    parser.add_argument("--length", type=int, default=4096, help="context tokens")
    arguments = parser.parse_args()
    results = []
    for options in candidates():
        try:
            results.append(measure(options, arguments.length, WINDOW))
            print(results[-1], flush=True)
        except Exception as error:  # a candidate may need more shared memory than there is
            print(options, "failed:", str(error).splitlines()[0][:200], flush=True)
    best = min(results, key=lambda result: result["backward_ms"])
    print("best", best, flush=True)
    if arguments.json:
        arguments.json.write_text(json.dumps({"results": results, "best": best}, indent=2) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
