"""Decoding step of fixed shapes, replayed as one CUDA graph where the device allows it."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from dflash_trainer.compilation.cuda_graph import capture_graph


class GraphedStep:
    """A function that updates tensors of fixed addresses and returns one tensor. Used by one thread."""

    def __init__(self, step: Callable[[], Tensor], device: torch.device, *, graphed: bool) -> None:
        self._step = step
        self._device = device
        self._graphed = graphed
        self._graph: torch.cuda.CUDAGraph | None = None
        self._output: Tensor | None = None

    def capture(self) -> None:
        """Compile and capture the step. It runs up to twice, so start a new sequence afterwards."""
        if self._graphed:
            self._graph, self._output = capture_graph(self._step, self._device)
        else:
            self._step()

    def __call__(self) -> list[int]:
        """Run the step and return its output as integers."""
        if self._graph is None:
            return [int(value) for value in self._step().tolist()]
        assert self._output is not None
        self._graph.replay()
        return [int(value) for value in self._output.tolist()]
