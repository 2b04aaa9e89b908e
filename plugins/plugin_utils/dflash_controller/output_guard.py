"""What a playbook does when its own output cannot be written: it says so where it still can, and ends.

Ansible prints what its forks say from a thread that any failed write ends, and then waits for that thread for ever.
"""
from __future__ import annotations

import contextlib
import io
import os
import signal
from collections.abc import Callable
from typing import Any

NAMES = {1: "standard output", 2: "standard error"}


class Guard:
    """Lets the first failed write of some streams end this process as Ctrl-C ends it: forks and notes included.

    Args:
        streams: sys.stdout, sys.stderr; what somebody replaced them by is left alone.
    """

    def __init__(self, *streams: Any) -> None:
        self.ending = False
        for stream in streams:
            if isinstance(stream, io.TextIOWrapper):
                buffer: Any = stream.buffer  # patched, not replaced: Ansible holds this very object
                buffer.write = self._guarded(buffer.write, stream.fileno())
                buffer.flush = self._guarded(buffer.flush, stream.fileno())

    def _guarded(self, act: Callable[..., Any], number: int) -> Callable[..., Any]:
        def guarded(*data: Any) -> Any:
            try:
                return act(*data)
            except OSError as error:
                drop(number)
                if not self.ending:
                    self.ending = True
                    end(number, error)
                return len(data[0]) if data else None

        return guarded


def drop(number: int) -> None:
    """Let what is still printed to a descriptor vanish."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, number)
    os.close(nowhere)


def end(number: int, error: OSError) -> None:
    """Say why on standard error, if that can be, and interrupt this process."""
    text = (
        f"[ERROR]: {NAMES.get(number, 'the output')} cannot be written: {error.strerror}. The playbook ends here, as"
        " Ctrl-C would end it. Remedy: make room where its output goes, and type the same again.\n"
    )
    with contextlib.suppress(OSError):
        os.write(2, text.encode())
    os.kill(os.getpid(), signal.SIGINT)
