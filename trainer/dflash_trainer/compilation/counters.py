"""Counters of compiled graphs and of compile-cache hits."""

from __future__ import annotations


def compiled_graphs() -> int:
    """Return the number of graphs compiled by this process; growth after the warm-up means a recompile."""
    from torch._dynamo.utils import counters

    return int(counters["stats"].get("unique_graphs", 0))


def cache_counters() -> dict[str, int]:
    """Return hits and misses of the compile caches so far, by the names used in reports."""
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
