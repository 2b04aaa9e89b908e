"""Thread-safe use of torch.compile and Triton in a process with several workers; docs/trainer.md explains the races."""

from __future__ import annotations

from dflash_trainer.compilation.counters import cache_counters, compiled_graphs
from dflash_trainer.compilation.recompiles import (
    allow_recompiles,
    configure_thread,
    forbid_recompiles,
    named_compile_failures,
)
from dflash_trainer.compilation.worker_compiler import WorkerCompiler, install_guards

__all__ = [
    "WorkerCompiler",
    "allow_recompiles",
    "cache_counters",
    "compiled_graphs",
    "configure_thread",
    "forbid_recompiles",
    "install_guards",
    "named_compile_failures",
]
