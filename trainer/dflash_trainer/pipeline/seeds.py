"""Seeds derived from batch numbers, not from threads: a resumed run needs no saved generator state."""

from __future__ import annotations

_MASK = (1 << 64) - 1


def seed_for(seed: int, *parts: int) -> int:
    """Return 63 bits mixed from a seed and numbers such as a batch number (splitmix64)."""
    state = seed & _MASK
    for part in parts:
        state = (state ^ (part & _MASK)) + 0x9E3779B97F4A7C15 & _MASK
        state = (state ^ state >> 30) * 0xBF58476D1CE4E5B9 & _MASK
        state = (state ^ state >> 27) * 0x94D049BB133111EB & _MASK
        state ^= state >> 31
    return state >> 1
