"""Shortened lists and texts that show that something was left out."""

from __future__ import annotations

from collections.abc import Sequence


def join_items(items: Sequence[str], limit: int, *, separator: str = "; ") -> str:
    """Join the first `limit` items in one line, followed by the number of the others."""
    return separator.join([*items[:limit], *_remainder(items, limit)])


def first_lines(items: Sequence[str], limit: int, *, indent: str = "") -> list[str]:
    """Return the first `limit` items as lines, followed by a line with the number of the others."""
    return [*items[:limit], *(indent + text for text in _remainder(items, limit))]


def _remainder(items: Sequence[str], limit: int) -> list[str]:
    return [f"and {len(items) - limit} more"] if len(items) > limit else []


def shorten(text: str, limit: int) -> str:
    """Return at most `limit` characters of a text, ending in `...` if it was cut."""
    return text if len(text) <= limit else text[: limit - 3] + "..."
