"""Compiled functions of one worker.

Dynamo keeps the compiled versions of a function in a list on its code object. A call walks that list, releases the GIL
while it evaluates guards, and moves the match to the front. When two threads call the same code object with several
versions, a lookup can miss its version and report a recompile. Each worker therefore compiles its own code objects.
"""

from __future__ import annotations

from collections.abc import Callable
from types import FunctionType
from typing import Any, ParamSpec, TypeVar

import torch

from dflash_trainer.compilation.autotuner_lock import serialise_autotuner
from dflash_trainer.compilation.fx_tracing import guard_tracing

P = ParamSpec("P")
T = TypeVar("T")


class WorkerCompiler:
    """Compiled functions of one worker, called by its thread and by autograd's during checkpoint recomputation."""

    def __init__(self) -> None:
        self._versions: dict[tuple[Callable[..., Any], bool], Callable[..., Any]] = {}

    def compiled(self, function: Callable[P, T], *, any_size: bool = False) -> Callable[P, T]:
        """Return this worker's compiled version of `function`, a plain function that returns tensors or plain tuples.

        Each shape is compiled separately; with `any_size`, one version serves all sizes.

        `function` must compile to a single graph: functions called after a graph break, or to construct a named tuple,
        have code objects that workers share. A test checks this. `fullgraph=True` would check it too, but torch 2.13
        keeps its state in process globals, which is another race.
        """
        key = (function, any_size)
        if key not in self._versions:
            install_guards()
            self._versions[key] = torch.compile(with_own_code(function), dynamic=any_size)
        return self._versions[key]


def with_own_code(function: Callable[P, T]) -> Callable[P, T]:
    """Return a copy of `function` with its own code object.

    Raises:
        TypeError: `function` is decorated, so its inner function would still be shared.
    """
    if not isinstance(function, FunctionType) or hasattr(function, "__wrapped__"):
        raise TypeError(f"{function!r} is not a plain function; apply decorators to its caller")
    code, scope = function.__code__.replace(), function.__globals__
    copy = FunctionType(code, scope, function.__name__, function.__defaults__, function.__closure__)
    copy.__kwdefaults__ = function.__kwdefaults__
    return copy


def install_guards() -> None:
    """Guard FX tracing and Triton's autotuner; idempotent. Call before the first compilation."""
    guard_tracing()
    serialise_autotuner()
