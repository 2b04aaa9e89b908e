"""Limits on recompiles, a ban on them after the warm-up, and compiler errors with a name and a remedy."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import torch

from dflash_trainer.compilation.fx_tracing import forbid_traces
from dflash_trainer.errors import CompileError

_VERSIONS_PER_SHAPE = 8
"""Maximum compiled versions of a function per worker and shape; also Dynamo's default limit."""


class _Limit:
    """Dynamo's limit on compiled versions per function in this process."""

    versions = _VERSIONS_PER_SHAPE


def configure_thread(shapes: int = 0) -> None:
    """Set Dynamo's limits for the calling thread; each worker calls this first, since torch 2.13 keeps them per thread.

    A worker compiles each function once per shape, and past its limit Dynamo silently runs eager. Therefore the limit
    is derived from the number of shapes, and exceeding it is an error.
    """
    _Limit.versions = max(_Limit.versions, _VERSIONS_PER_SHAPE * shapes)
    import torch._dynamo.config as dynamo

    dynamo.recompile_limit = _Limit.versions
    dynamo.accumulated_recompile_limit = max(dynamo.accumulated_recompile_limit, 16 * _Limit.versions)
    dynamo.fail_on_recompile_limit_hit = True


def forbid_recompiles() -> None:
    """Make every call that would compile or trace raise; `named_compile_failures` translates the error."""
    torch.compiler.set_stance("fail_on_recompile")
    forbid_traces(True)


def allow_recompiles() -> None:
    """Undo `forbid_recompiles`."""
    torch.compiler.set_stance("default")
    forbid_traces(False)


@contextlib.contextmanager
def named_compile_failures() -> Iterator[None]:
    """Convert exceptions of Dynamo and Inductor into CompileError with a remedy; others pass through."""
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
            f"a call would recompile for a shape that the warm-up did not cover ({where})",
            "add its length to data.buckets, or report it: the warm-up should cover every shape of a run",
        )
    if "recompile_limit" in text or type(error).__name__ == "FailOnRecompileLimitHit":
        return CompileError(
            f"a function exceeded torch.compile's limit of {_Limit.versions} versions",
            "use fewer buckets or devices in one process",
            name="recompile_limit",
        )
    if type(error).__module__.startswith(("torch._dynamo", "torch._inductor")):
        return CompileError(
            f"compilation failed: {text.splitlines()[0] if text else type(error).__name__}",
            "see the traceback, or set runtime.compile = false to run without compilation",
            name="compile_failed",
        )
    return None
