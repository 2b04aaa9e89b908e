"""Guards against FX tracing in a process with worker threads.

A trace patches `nn.Module` for the whole process. In torch 2.10 to 2.13 the flag for a running trace is also a module
global, which makes compiled calls in other threads fail. Here the flag is thread-local, and traces raise an error while
workers run.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from types import ModuleType
from typing import Any

import torch

from dflash_trainer.errors import CompileError


class _Tracing:
    """Process-wide switch: traces raise CompileError while `forbidden`."""

    forbidden = False


def forbid_traces(forbidden: bool) -> None:
    """Make every FX trace raise CompileError, or allow traces again."""
    _Tracing.forbidden = forbidden


def guard_tracing() -> None:
    """Wrap `Tracer.trace`, which every FX trace calls, and make the flag thread-local; idempotent."""
    tracer: Any = torch.fx.Tracer
    if not hasattr(tracer.trace, "_dflash_guarded"):
        tracer.trace = _guarded(tracer.trace)
    keep_fx_flag_per_thread()


def _guarded(trace: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(trace)
    def guarded(*args: Any, **kwargs: Any) -> Any:
        if _Tracing.forbidden:
            raise CompileError(
                "a torch.fx trace would start while workers run; it would patch nn.Module in all threads",
                "report this with the traceback: the warm-up must cover all tracing",
                name="late_trace",
            )
        return trace(*args, **kwargs)

    guarded._dflash_guarded = True  # type: ignore[attr-defined]
    return guarded


class _FxState(threading.local):
    """Thread-local flag: True while the calling thread traces."""

    active = False


class _ModuleWithThreadFlag(ModuleType):
    """`torch.fx._symbolic_trace` with a thread-local flag."""

    _dflash_fx_state: _FxState

    @property
    def _is_fx_tracing_flag(self) -> bool:
        return self._dflash_fx_state.active

    @_is_fx_tracing_flag.setter
    def _is_fx_tracing_flag(self, value: bool) -> None:
        self._dflash_fx_state.active = bool(value)


def fx_flag_is_global() -> bool:
    """Return True for torch versions whose flag is a module global."""
    return isinstance(vars(torch.fx._symbolic_trace).get("_is_fx_tracing_flag"), bool)


def keep_fx_flag_per_thread() -> bool:
    """Back-port the thread-local flag of torch 2.14 if needed; returns True when this call installed it.

    Dynamo identifies the functions that read the flag by identity, so only their code objects are replaced.
    """
    module: Any = torch.fx._symbolic_trace
    if not fx_flag_is_global() or hasattr(module, "_dflash_fx_state"):
        return False
    state = _FxState()
    module._dflash_fx_state = state
    module.is_fx_tracing.__code__ = _read_flag.__code__
    module.is_fx_symbolic_tracing.__code__ = _read_symbolic_flag.__code__
    module.Tracer.trace = _tracing_in_this_thread(module.Tracer.trace, state)
    module.__class__ = _ModuleWithThreadFlag
    return True


def _read_flag() -> bool:
    """Code for torch's `is_fx_tracing`; its globals are those of torch's module."""
    return _dflash_fx_state.active  # type: ignore[name-defined,no-any-return]  # noqa: F821


def _read_symbolic_flag() -> bool:
    """Code for torch's `is_fx_symbolic_tracing`."""
    return _dflash_fx_state.active and not torch.compiler.is_compiling()  # type: ignore[name-defined,no-any-return]  # noqa: F821


def _tracing_in_this_thread(trace: Callable[..., Any], state: _FxState) -> Callable[..., Any]:
    @functools.wraps(trace)
    def traced(*args: Any, **kwargs: Any) -> Any:
        before, state.active = state.active, True
        try:
            return trace(*args, **kwargs)
        finally:
            state.active = before

    return traced
