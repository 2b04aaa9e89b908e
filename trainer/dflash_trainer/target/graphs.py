"""CUDA graphs of the target, one per bucket: one launch instead of thousands, which frees the GIL for other threads."""

# Tensor letters: see dflash_trainer/__init__.py.

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from dflash_trainer.compilation.cuda_graph import capture_graph


@dataclass(frozen=True)
class _CapturedGraph:
    """A CUDA graph with its static input [B, L] and output [B, L, X]."""

    graph: torch.cuda.CUDAGraph
    input_ids: Tensor
    states: Tensor


class GraphedForward:
    """Captures `forward` once per shape and replays it. Owner: Target. Used by one thread at a time."""

    def __init__(self, forward: Callable[[Tensor, Tensor], None], width: int, dtype: torch.dtype) -> None:
        self.forward = forward
        self.width = width
        self.dtype = dtype
        self.captured: dict[tuple[int, int], _CapturedGraph] = {}
        self.pool: tuple[int, int] | None = None

    def capture(self, rows: int, length: int, device: torch.device) -> None:
        """Run the shape [rows, length] once, to compile and autotune, then capture its graph."""
        if (rows, length) in self.captured:
            return
        input_ids = torch.zeros(rows, length, dtype=torch.int64, device=device)
        states = torch.empty(rows, length, self.width, dtype=self.dtype, device=device)
        graph, _ = capture_graph(lambda: self.forward(input_ids, states), device, self.pool)
        self.pool = graph.pool()
        self.captured[rows, length] = _CapturedGraph(graph, input_ids, states)

    def covers(self, input_ids_BL: Tensor) -> bool:
        """Return True when a graph was captured for the shape of `input_ids_BL`."""
        return (input_ids_BL.shape[0], input_ids_BL.shape[1]) in self.captured

    def replay(self, input_ids_BL: Tensor, into_BLX: Tensor) -> None:
        """Replay the graph on `input_ids_BL` and copy the states to `into_BLX`, all on the current stream."""
        captured = self.captured[input_ids_BL.shape[0], input_ids_BL.shape[1]]
        captured.input_ids.copy_(input_ids_BL, non_blocking=True)
        captured.graph.replay()
        into_BLX.copy_(captured.states, non_blocking=True)
