"""Bounded queue of hidden states in front of one drafter.

The drafter takes batches in turn order. A target may write turn t only while t is less than `depth` turns ahead of the
drafter, so the batch that the drafter waits for always has a free slot. On CUDA the slots are a ring of buffers on the
drafter's device, allocated once; on CPU the queue passes the tensor itself.
"""

# Tensor letters: see dflash_trainer/__init__.py.

from __future__ import annotations

import threading
from dataclasses import dataclass

import torch
from torch import Tensor

from dflash_trainer.data.prefetch import LoadedBatch


class QueueClosed(Exception):
    """The run is ending; not a failure of the caller."""


@dataclass(frozen=True)
class StatesBatch:
    """A batch with its hidden states, on the drafter's device."""

    loaded: LoadedBatch
    states_BLX: Tensor
    ready: torch.cuda.Event | None


@dataclass(frozen=True)
class RingShape:
    """Buffers for `tokens` positions of `width` values each."""

    tokens: int
    width: int
    dtype: torch.dtype


class StatesQueue:
    """Queue of `depth` batches on `device`. Writers: every target worker. Reader: one drafter worker."""

    def __init__(self, device: torch.device, depth: int, ring: RingShape) -> None:
        self.device = device
        self.depth = depth
        self._items: dict[int, StatesBatch] = {}
        self._taken = self._released = 0
        self._closed = False
        self._changed = threading.Condition()
        self._ring: list[Tensor] | None = None
        if device.type == "cuda":
            # one tensor per slot: views of one tensor share autograd's version counter
            values = ring.tokens * ring.width
            self._ring = [torch.empty(values, dtype=ring.dtype, device=device) for _ in range(depth)]
            self._copies = torch.cuda.Stream(device)
            self._free = [torch.cuda.Event() for _ in range(depth)]

    def __len__(self) -> int:
        with self._changed:
            return len(self._items)

    def put(self, loaded: LoadedBatch, states_BLX: Tensor) -> None:
        """Queue a batch with its states [B, L, X]; block until a slot is free. Raises QueueClosed."""
        turn = loaded.work.turn
        with self._changed:
            self._changed.wait_for(lambda: turn < self._released + self.depth or self._closed)
            if self._closed:
                raise QueueClosed
        item = self._into_ring(loaded, states_BLX) if self._ring is not None else StatesBatch(loaded, states_BLX, None)
        with self._changed:
            self._items[turn] = item
            self._changed.notify_all()

    def take(self) -> StatesBatch:
        """Return the next turn's batch; release() frees its slot. Raises QueueClosed."""
        with self._changed:
            self._changed.wait_for(lambda: self._taken in self._items or self._closed)
            if self._taken not in self._items:
                raise QueueClosed
            item = self._items.pop(self._taken)
            self._taken += 1
        if item.ready is not None:
            torch.cuda.current_stream(self.device).wait_event(item.ready)
        return item

    def release(self) -> None:
        """Free the slot of the last batch taken; call after its backward pass was launched."""
        if self._ring is not None:
            self._free[self._released % self.depth].record(torch.cuda.current_stream(self.device))
        with self._changed:
            self._released += 1
            self._changed.notify_all()

    def close(self) -> None:
        """Wake all waiting threads with QueueClosed."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def _into_ring(self, loaded: LoadedBatch, states_BLX: Tensor) -> StatesBatch:
        """Copy on a separate stream, so that the target does not wait for the drafter's queued work."""
        assert self._ring is not None
        slot = loaded.work.turn % self.depth
        buffer = self._ring[slot][: states_BLX.numel()].view(states_BLX.shape)
        source = torch.cuda.current_stream(states_BLX.device) if states_BLX.is_cuda else None
        if source is not None:
            self._copies.wait_stream(source)
        with torch.cuda.stream(self._copies):
            self._copies.wait_event(self._free[slot])
            buffer.copy_(states_BLX, non_blocking=True)
            ready = torch.cuda.Event()
            ready.record(self._copies)
        if source is not None:
            source.wait_event(ready)
        return StatesBatch(loaded, buffer, ready)
