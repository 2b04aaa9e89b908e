"""Send a request and its input to the agent in a container, from a thread."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterable
from typing import IO, Any

from dflash_ops.proxmox.pct_agent import write_frame


class Sender(threading.Thread):
    """Send one request and its input. Owner: exchange(), which joins it."""

    def __init__(
        self,
        stream: IO[bytes],
        request: dict[str, Any],
        pieces: Iterable[bytes],
        final: Callable[[], bytes],
        on_error: Callable[[], None],
    ) -> None:
        super().__init__(daemon=True)
        self.stream = stream
        self.request = request
        self.pieces = pieces
        self.final = final
        self.on_error = on_error
        self.error: Exception | None = None
        self.answered = False

    def run(self) -> None:
        """Send the input until the answer arrives; on an error, keep it for the owner and stop the agent."""
        writer = Writer(self.stream)
        try:
            write_frame(writer, b"R", json.dumps(self.request).encode())
            for piece in self.pieces:
                if self.answered:
                    break
                write_frame(writer, b"I", piece)
            write_frame(writer, b"E", self.final())
        except Exception as error:
            self.error = error
            self.on_error()

    def source_error(self) -> Exception | None:
        """Return an error of the input, such as an unreadable source; None for an error of the pipe."""
        return None if isinstance(self.error, (OSError, ValueError)) else self.error


class Writer:
    """Wrapper of an unbuffered pipe whose write() writes all bytes."""

    def __init__(self, stream: IO[bytes]) -> None:
        self.stream = stream

    def write(self, data: bytes) -> None:
        """Write all of `data`."""
        write_all(self.stream, data)

    def flush(self) -> None:
        """Do nothing: the pipe is unbuffered."""


def write_all(stream: IO[bytes], data: bytes) -> None:
    """Write all of `data` to a raw pipe."""
    view = memoryview(data)
    while view:
        view = view[stream.write(view) or 0:]
