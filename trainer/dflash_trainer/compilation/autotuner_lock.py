"""Lock around Triton's autotuners.

`Autotuner.run` stores the arguments of a call in the autotuner and clears them when it returns. Two threads in the same
autotuner clear each other's arguments: `'NoneType' object is not a mapping`.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


def serialise_autotuner() -> bool:
    """Lock each Triton autotuner while a thread runs it; returns True when this call installed the lock."""
    try:
        from triton.runtime.autotuner import Autotuner
    except ImportError:  # CPU builds of torch come without Triton
        return False
    if hasattr(Autotuner.run, "_dflash_serialised"):
        return False
    Autotuner.run = one_thread_at_a_time(Autotuner.run)
    return True


def one_thread_at_a_time(method: Callable[P, T]) -> Callable[P, T]:
    """Wrap a method in a re-entrant lock per instance."""

    @functools.wraps(method)
    def serialised(*args: P.args, **kwargs: P.kwargs) -> T:
        lock = vars(args[0]).setdefault("_dflash_lock", threading.RLock())
        with lock:
            return method(*args, **kwargs)

    serialised._dflash_serialised = True  # type: ignore[attr-defined]
    return serialised
