"""One CUDA graph a bucket: a forward of thousands of launches becomes one, and Python stays free for other threads."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from dflash_trainer.compilation.cuda_graph import capture_graph


@dataclass(frozen=True)
class _Recorded:
    graph: torch.cuda.CUDAGraph
    input_ids: Tensor
    states: Tensor


class GraphedForward:
    """Records `forward` once a shape and replays it. Owner: Target. Used by one thread at a time."""

    def __init__(self, forward: Callable[[Tensor, Tensor], None], width: int, dtype: torch.dtype) -> None:
        self.forward = forward
        self.width = width
        self.dtype = dtype
        self.recorded: dict[tuple[int, int], _Recorded] = {}
        self.pool: tuple[int, int] | None = None

    def record(self, rows: int, length: int, device: torch.device) -> None:
        """Run once (compiling and autotuning what is new), then record the shape [rows, length]."""
        if (rows, length) in self.recorded:
            return
        input_ids = torch.zeros(rows, length, dtype=torch.int64, device=device)
        states = torch.empty(rows, length, self.width, dtype=self.dtype, device=device)
        graph, _ = capture_graph(lambda: self.forward(input_ids, states), device, self.pool)
        self.pool = graph.pool()
        self.recorded[rows, length] = _Recorded(graph, input_ids, states)

    def covers(self, input_ids: Tensor) -> bool:
        return (input_ids.shape[0], input_ids.shape[1]) in self.recorded

    def replay(self, input_ids: Tensor, into: Tensor) -> None:
        """Run the recorded graph on `input_ids` and copy the states out, all on the current stream."""
        recorded = self.recorded[input_ids.shape[0], input_ids.shape[1]]
        recorded.input_ids.copy_(input_ids, non_blocking=True)
        recorded.graph.replay()
        into.copy_(recorded.states, non_blocking=True)
