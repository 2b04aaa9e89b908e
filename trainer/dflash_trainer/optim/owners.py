"""Which drafter owns which weights: it keeps their masters and moments and updates them for all."""

from __future__ import annotations

from collections.abc import Mapping


def divide(sizes: Mapping[str, int], owners: int) -> list[list[str]]:
    """Names for each owner: the largest first, each to the owner that has least."""
    parts: list[list[str]] = [[] for _ in range(owners)]
    loads = [0] * owners
    for name in sorted(sizes, key=lambda name: (-sizes[name], name)):
        owner = loads.index(min(loads))
        parts[owner].append(name)
        loads[owner] += sizes[name]
    return parts
