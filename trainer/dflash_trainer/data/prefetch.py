"""Background reading of batches, ahead of the target workers."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass

from dflash_trainer.data.batches import Batch
from dflash_trainer.data.stream import Work


@dataclass(frozen=True)
class LoadedBatch:
    """A work item with its tokens."""

    work: Work
    batch: Batch


class Prefetcher:
    """Reads up to `depth` batches ahead from `loaded` in one thread, which close() joins. Owner: Pipeline.

    An error in the thread is raised by take() once the batches read before it are consumed.
    """

    def __init__(self, loaded: Iterator[LoadedBatch], *, depth: int) -> None:
        self._loaded = loaded
        self._depth = depth
        self._ready: deque[LoadedBatch] = deque()
        self._changed = threading.Condition()
        self._finished = self._closed = False
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._read, name="prefetch", daemon=True)

    def start(self) -> None:
        """Start the reading thread."""
        self._thread.start()

    def take(self) -> LoadedBatch | None:
        """Return the next batch in order; None after the last one or after close()."""
        with self._changed:
            self._changed.wait_for(lambda: self._ready or self._finished or self._closed)
            if self._closed:
                return None
            if self._ready:
                item = self._ready.popleft()
                self._changed.notify_all()
                return item
            if self._error:
                raise self._error
            return None

    def close(self) -> None:
        """Stop reading, wake waiting threads and join the reading thread."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        if self._thread.ident is not None:
            self._thread.join()

    def _read(self) -> None:
        try:
            for item in self._loaded:
                with self._changed:
                    self._changed.wait_for(lambda: len(self._ready) < self._depth or self._closed)
                    if self._closed:
                        return
                    self._ready.append(item)
                    self._changed.notify_all()
        except BaseException as error:
            self._error = error
        finally:
            with self._changed:
                self._finished = True
                self._changed.notify_all()
