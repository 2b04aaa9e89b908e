"""End a playbook whose own output cannot be written.

Ansible prints the output of its forks from a thread. A failed write ends that thread, and Ansible waits for it forever.
"""

from __future__ import annotations

import contextlib
import io
import os
import signal
from collections.abc import Callable
from typing import Any

NAMES = {1: "standard output", 2: "standard error"}


class OutputGuard:
    """Interrupts this process, as Ctrl-C does, on the first failed write to one of some streams.

    Args:
        streams: sys.stdout, sys.stderr; a replacement of another type is not guarded.
    """

    def __init__(self, *streams: Any) -> None:
        self.interrupted = False
        for stream in streams:
            if isinstance(stream, io.TextIOWrapper):
                buffer: Any = stream.buffer  # patched, not replaced: Ansible keeps a reference to this object
                buffer.write = self._guarded(buffer.write, stream.fileno())
                buffer.flush = self._guarded(buffer.flush, stream.fileno())

    def _guarded(self, operation: Callable[..., Any], descriptor: int) -> Callable[..., Any]:
        def guarded(*data: Any) -> Any:
            try:
                return operation(*data)
            except OSError as error:
                redirect_to_devnull(descriptor)
                if not self.interrupted:
                    self.interrupted = True
                    interrupt_playbook(descriptor, error)
                return len(data[0]) if data else None

        return guarded


def redirect_to_devnull(descriptor: int) -> None:
    """Discard everything that is still printed to a descriptor."""
    devnull = os.open(os.devnull, os.O_WRONLY)
    os.dup2(devnull, descriptor)
    os.close(devnull)


def interrupt_playbook(descriptor: int, error: OSError) -> None:
    """Print the reason on standard error, if possible, and interrupt this process."""
    text = (
        f"[ERROR]: {NAMES.get(descriptor, 'the output')} cannot be written: {error.strerror}. The playbook ends here,"
        " as after Ctrl-C. Remedy: free space where its output goes, and run the same command again.\n"
    )
    with contextlib.suppress(OSError):
        os.write(2, text.encode())
    os.kill(os.getpid(), signal.SIGINT)
