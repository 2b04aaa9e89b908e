"""Partition of the weights among drafters: the owner keeps masters and moments and updates them for all replicas."""

from __future__ import annotations

from collections.abc import Mapping


def partition_weights(sizes: Mapping[str, int], owners: int) -> list[list[str]]:
    """Return the weight names of each owner: largest first, each to the owner with the smallest load."""
    parts: list[list[str]] = [[] for _ in range(owners)]
    loads = [0] * owners
    for name in sorted(sizes, key=lambda name: (-sizes[name], name)):
        owner = loads.index(min(loads))
        parts[owner].append(name)
        loads[owner] += sizes[name]
    return parts
