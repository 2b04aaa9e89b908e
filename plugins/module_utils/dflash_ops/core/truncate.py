"""What is too long to be told whole, and says that it is cut."""

from __future__ import annotations

from collections.abc import Sequence


def join_items(items: Sequence[str], limit: int, *, separator: str = "; ") -> str:
    """Return the first `limit` items in one line, and how many more there are."""
    more = [f"and {len(items) - limit} more"] if len(items) > limit else []
    return separator.join([*items[:limit], *more])


def first_lines(items: Sequence[str], limit: int, *, indent: str = "") -> list[str]:
    """Return the first `limit` items, a line each, and a line that says how many more there are."""
    more = [f"{indent}and {len(items) - limit} more"] if len(items) > limit else []
    return [*items[:limit], *more]


def shorten(text: str, limit: int) -> str:
    """Return at limit `limit` characters of a text; `...` stands for the rest."""
    return text if len(text) <= limit else text[: limit - 3] + "..."
