"""Recompiles after the warm-up: forbidden, and every failure of the compiler gets a name and a remedy."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import torch

from dflash_trainer.compilation.fx_tracing import refuse_traces
from dflash_trainer.errors import CompileError

_VERSIONS_PER_SHAPE = 8
"""Most versions of one function a worker needs for one shape; also Dynamo's own limit."""


class _Limit:
    """Dynamo's limit of versions of a function in this process."""

    versions = _VERSIONS_PER_SHAPE


def configure_thread(shapes: int = 0) -> None:
    """Set Dynamo's limits for the calling thread; every worker calls it first (torch 2.13 keeps them per thread).

    A worker compiles a function for each shape, and Dynamo silently gives up past its limit; so the limit is sized
    from the shapes, and passing it is an error.
    """
    _Limit.versions = max(_Limit.versions, _VERSIONS_PER_SHAPE * shapes)
    import torch._dynamo.config as dynamo

    dynamo.recompile_limit = _Limit.versions
    dynamo.accumulated_recompile_limit = max(dynamo.accumulated_recompile_limit, 16 * _Limit.versions)
    dynamo.fail_on_recompile_limit_hit = True


def forbid_recompiles() -> None:
    """From here on a call that would compile or trace raises; `named_compile_failures` gives it its name."""
    torch.compiler.set_stance("fail_on_recompile")
    refuse_traces(True)


def allow_recompiles() -> None:
    """Undo `forbid_recompiles`."""
    torch.compiler.set_stance("default")
    refuse_traces(False)


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
            f"torch.compile's limit of {_Limit.versions} versions of a function was passed",
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
