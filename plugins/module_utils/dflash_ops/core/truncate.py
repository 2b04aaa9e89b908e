"""What is too long to be told whole, and says that it is cut."""

from __future__ import annotations

from collections.abc import Sequence


def listed(items: Sequence[str], most: int, *, between: str = "; ") -> str:
    """Return the first `most` items in one line, and how many more there are."""
    more = [f"and {len(items) - most} more"] if len(items) > most else []
    return between.join([*items[:most], *more])


def first_lines(items: Sequence[str], most: int, *, indent: str = "") -> list[str]:
    """Return the first `most` items, a line each, and a line that says how many more there are."""
    more = [f"{indent}and {len(items) - most} more"] if len(items) > most else []
    return [*items[:most], *more]


def shortened(text: str, most: int) -> str:
    """Return at most `most` characters of a text; `...` stands for the rest."""
    return text if len(text) <= most else text[: most - 3] + "..."
