"""Numbers, aligned rows, tables and problem lists for all screens."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

GOOD = "✔"
BAD = "✘"
MARKS = {"running": "●", "finished": GOOD, "stopped": "■", "not running": "○", "unknown": "?"}


def number(value: Any, form: str = ".0f") -> str:
    """Return a number in `form`; text unchanged; a dash for None."""
    if value is None:
        return "-"
    return f"{value:{form}}" if isinstance(value, (int, float)) else str(value)


def rows(pairs: Iterable[tuple[str, str]]) -> list[str]:
    """Return aligned `name  value` lines; pairs with an empty value are left out."""
    kept = [(name, text) for name, text in pairs if text]
    width = max((len(name) for name, _ in kept), default=0)
    return [f"  {name:<{width}}  {text}" for name, text in kept]


def table(head: Sequence[str], body: Sequence[Sequence[str]]) -> list[str]:
    """Return lines with aligned columns."""
    widths = [max(len(row[column]) for row in [head, *body]) for column in range(len(head))]
    return ["  " + "  ".join(f"{cell:<{width}}" for cell, width in zip(row, widths)).rstrip() for row in [head, *body]]


def problem_lines(problems: Sequence[Mapping[str, str]]) -> list[str]:
    """Return each problem with its remedy."""
    lines = []
    for item in problems:
        first, *rest = str(item["message"]).splitlines() or [""]
        lines.append(f"  {BAD} {item['name']}: {first}")
        lines += [f"      {text}" for text in rest]
        if item.get("remedy"):
            lines.append(f"      remedy: {item['remedy']}")
    return lines
