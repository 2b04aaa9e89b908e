"""Keeps torch.compile and Triton safe when several threads share a process.

Three things go wrong without it. While one thread traces, an already compiled call in another thread fails (torch 2.10
to 2.13 keep "is tracing" in a module global). Two threads in one Triton autotuner clear each other's arguments. And a
shape that the warm-up missed compiles, or runs uncompiled, in the middle of a run without a word.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import threading
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any, ParamSpec, TypeVar

import torch

from dflash_trainer.errors import CompileError

P = ParamSpec("P")
T = TypeVar("T")

_LIMIT = 8
"""Dynamo's own default for compiled versions of one function."""


@dataclasses.dataclass
class _State:
    """What this process has installed."""

    lock: threading.RLock = dataclasses.field(default_factory=threading.RLock)
    limit: int = _LIMIT
    compiled: dict[tuple[Callable[..., Any], bool], Callable[..., Any]] = dataclasses.field(default_factory=dict)


_state = _State()


def compile_once(function: Callable[P, T], *, any_size: bool = False) -> Callable[P, T]:
    """The one compiled version of `function` in this process.

    Shapes are static, each compiled on its own, unless `any_size` asks for one version that fits all sizes.
    """
    key = (function, any_size)
    found = _state.compiled.get(key)
    if found is None:
        with _state.lock:
            found = _state.compiled.get(key)
            if found is None:
                install()
                found = torch.compile(function, dynamic=any_size)
                _state.compiled[key] = found
    return found


def install() -> None:
    """Install every guard this torch and Triton need; harmless when repeated. Call before the first compilation."""
    with _state.lock:
        keep_fx_flag_per_thread()
        serialise_autotuner()


def configure_thread(devices: int = 0, shapes: int = 0) -> None:
    """Set Dynamo's limits for the calling thread; every worker calls it first (torch 2.13 keeps them per thread).

    A function is compiled once for each device and shape, and Dynamo silently gives up past its limit; so the
    limit is sized from both, and passing it is an error.
    """
    with _state.lock:
        _state.limit = max(_state.limit, _LIMIT * max(1, devices) * max(1, shapes))
    import torch._dynamo.config as dynamo

    dynamo.recompile_limit = _state.limit
    dynamo.accumulated_recompile_limit = max(dynamo.accumulated_recompile_limit, 16 * _state.limit)
    dynamo.fail_on_recompile_limit_hit = True


def forbid_recompiles() -> None:
    """From here on a call that would compile raises; `named_compile_failures` gives it its name."""
    torch.compiler.set_stance("fail_on_recompile")


def allow_recompiles() -> None:
    """Undo `forbid_recompiles`."""
    torch.compiler.set_stance("default")


@contextlib.contextmanager
def named_compile_failures() -> Iterator[None]:
    """Turn Dynamo's and Inductor's exceptions into CompileError with the remedy; others pass."""
    try:
        yield
    except CompileError:
        raise
    except Exception as error:
        named = _name_failure(error)
        if named is None:
            raise
        raise named from error


def compiled_graphs() -> int:
    """Graphs compiled by this process so far; a growing number after the warm-up is a recompile."""
    from torch._dynamo.utils import counters

    return int(counters["stats"].get("unique_graphs", 0))


def cache_counters() -> dict[str, int]:
    """Hits and misses of the compile caches so far, by the names that reports use."""
    from torch._dynamo.utils import counters

    inductor, autograd = counters["inductor"], counters["aot_autograd"]
    names = {
        "fxgraph_cache_hit": inductor,
        "fxgraph_cache_miss": inductor,
        "fxgraph_cache_bypass": inductor,
        "autograd_cache_hit": autograd,
        "autograd_cache_miss": autograd,
    }
    return {name: int(source.get(name, 0)) for name, source in names.items()}


def _name_failure(error: Exception) -> CompileError | None:
    text = str(error)
    if "fail_on_recompile" in text:
        where = text.partition("filename:")[2].partition("\n")[0].strip()
        return CompileError(
            f"a shape that the warm-up did not cover would compile ({where})",
            "add its length to data.buckets, or report it: every shape of a run is known before it starts",
        )
    if "recompile_limit" in text or type(error).__name__ == "FailOnRecompileLimitHit":
        return CompileError(
            f"torch.compile's limit of {_state.limit} versions of a function was passed",
            "use fewer buckets or devices in one process",
            name="recompile_limit",
        )
    if type(error).__module__.startswith(("torch._dynamo", "torch._inductor")):
        return CompileError(
            f"compilation failed: {text.splitlines()[0] if text else type(error).__name__}",
            "see the traceback; runtime.compile = false runs without compilation",
            name="compile_failed",
        )
    return None


# --- the FX flag --------------------------------------------------------------------------------------------------


class _FxState(threading.local):
    """Whether the calling thread traces."""

    active = False


class _ModuleWithThreadFlag(ModuleType):
    """`torch.fx._symbolic_trace` with a flag that each thread sees for itself."""

    _dflash_fx_state: _FxState

    @property
    def _is_fx_tracing_flag(self) -> bool:
        return self._dflash_fx_state.active

    @_is_fx_tracing_flag.setter
    def _is_fx_tracing_flag(self, value: bool) -> None:
        self._dflash_fx_state.active = bool(value)


def fx_flag_is_global() -> bool:
    """True for the torch versions that keep the flag in a module global."""
    return isinstance(vars(torch.fx._symbolic_trace).get("_is_fx_tracing_flag"), bool)


def keep_fx_flag_per_thread() -> bool:
    """Back-port torch 2.14's thread-local flag where it is needed; returns whether this call changed anything.

    The functions that read the flag keep their identity, since Dynamo knows them by it: only their code changes.
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
    """Becomes the code of torch's `is_fx_tracing`, so its names are those of torch's module."""
    return _dflash_fx_state.active  # type: ignore[name-defined,no-any-return]  # noqa: F821


def _read_symbolic_flag() -> bool:
    """Becomes the code of torch's `is_fx_symbolic_tracing`."""
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


# --- the autotuner ------------------------------------------------------------------------------------------------


def serialise_autotuner() -> bool:
    """Let one thread at a time into each Triton autotuner; returns whether this call changed anything."""
    try:
        from triton.runtime.autotuner import Autotuner
    except ImportError:  # CPU builds of torch come without Triton
        return False
    if hasattr(Autotuner.run, "_dflash_serialised"):
        return False
    Autotuner.run = one_thread_at_a_time(Autotuner.run)
    return True


def one_thread_at_a_time(method: Callable[P, T]) -> Callable[P, T]:
    """Wrap a method so that each instance runs it in one thread at a time (re-entrant)."""

    @functools.wraps(method)
    def serialised(*args: P.args, **kwargs: P.kwargs) -> T:
        lock = vars(args[0]).setdefault("_dflash_lock", threading.RLock())
        with lock:
            return method(*args, **kwargs)

    serialised._dflash_serialised = True  # type: ignore[attr-defined]
    return serialised
