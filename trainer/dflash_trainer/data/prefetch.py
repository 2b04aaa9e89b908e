"""Reads batches ahead of the target workers."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass

from dflash_trainer.data.batches import Batch
from dflash_trainer.data.stream import Work


@dataclass(frozen=True)
class Loaded:
    """Work with its tokens."""

    work: Work
    batch: Batch


class Prefetcher:
    """Reads `loaded` ahead, `depth` batches. Owner: Pipeline. Thread: one. Stops on close(), which joins.

    An error in the thread is raised by the next take().
    """

    def __init__(self, loaded: Iterator[Loaded], *, depth: int) -> None:
        self._loaded = loaded
        self._depth = depth
        self._ready: deque[Loaded] = deque()
        self._changed = threading.Condition()
        self._finished = self._closed = False
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._read, name="prefetch", daemon=True)

    def start(self) -> None:
        """Begin to read."""
        self._thread.start()

    def take(self) -> Loaded | None:
        """The next batch, in order; None after the last one or after close()."""
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
        """Stop reading, wake whoever waits, join."""
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
