"""Capture of a function as a CUDA graph."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import torch

Output = TypeVar("Output")


def capture_graph(
    function: Callable[[], Output], device: torch.device, pool: tuple[int, int] | None = None
) -> tuple[torch.cuda.CUDAGraph, Output]:
    """Run `function` once on a side stream, which compiles and autotunes it, then capture it.

    Other threads may use CUDA during the capture.

    Args:
        function: reads and writes tensors of fixed addresses and shapes.
        device: CUDA device of these tensors.
        pool: memory pool of an earlier graph that is never replayed at the same time.

    Returns:
        The graph and the output of the captured call, which every replay overwrites.
    """
    stream = torch.cuda.Stream(device)
    stream.wait_stream(torch.cuda.current_stream(device))
    with torch.cuda.stream(stream):
        function()
    torch.cuda.current_stream(device).wait_stream(stream)
    torch.cuda.synchronize(device)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, pool=pool, capture_error_mode="thread_local"):
        output = function()
    return graph, output
