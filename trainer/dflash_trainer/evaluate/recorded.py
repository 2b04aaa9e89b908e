"""A step of fixed shapes: on CUDA recorded once and replayed as one launch, elsewhere simply run."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor


class RecordedStep:
    """`step` reads and writes tensors that stay where they are, and returns one. Used by one thread."""

    def __init__(self, step: Callable[[], Tensor], device: torch.device, *, graphed: bool) -> None:
        self._step = step
        self._device = device
        self._graphed = graphed
        self._graph: torch.cuda.CUDAGraph | None = None
        self._output: Tensor | None = None

    def record(self) -> None:
        """Compile and record; the step runs twice, so begin a sequence anew afterwards."""
        if not self._graphed:
            self._step()
            return
        stream = torch.cuda.Stream(self._device)
        stream.wait_stream(torch.cuda.current_stream(self._device))
        with torch.cuda.stream(stream):
            self._step()
        torch.cuda.current_stream(self._device).wait_stream(stream)
        torch.cuda.synchronize(self._device)
        self._graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self._graph, capture_error_mode="thread_local"):
            self._output = self._step()

    def __call__(self) -> list[int]:
        """Run the step; what it returned, as numbers."""
        if self._graph is None:
            return [int(value) for value in self._step().tolist()]
        assert self._output is not None
        self._graph.replay()
        return [int(value) for value in self._output.tolist()]
