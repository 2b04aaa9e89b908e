"""Comparison of two runs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dflash_controller.screens.text import number, table

SPEED_ROWS = (
    ("tok_s", "tok/s", ".0f"),
    ("best_tok_s", "best tok/s", ".0f"),
    ("step", "step", ".0f"),
    ("loss", "loss", ".3f"),
    ("accept_len", "accept length", ".2f"),
    ("queue_depth", "queue", ".0f"),
    ("recompiles", "recompiles", ".0f"),
)


def compare_screen(answer: Mapping[str, Any]) -> list[str]:
    """Return the speeds and the differences, the most likely cause first."""
    a, b = answer["speed"]["a"], answer["speed"]["b"]
    body = [(name, number(a.get(key), form), number(b.get(key), form)) for key, name, form in SPEED_ROWS]
    lines = [f"{side.upper()} {answer[f'run_{side}']} ({answer['states'][side]})" for side in "ab"]
    lines += table(("", "A", "B"), body)
    if answer["run_a"] == answer["run_b"]:
        return [*lines, "  A and B are the same run: compare again after the next run, or pass -e run_a=ID -e run_b=ID"]
    if not answer["differences"]:
        return [*lines, "  no recorded difference: check load, clocks, temperature and disk of the box"]
    lines.append("  differences, the most likely cause first:")
    lines += [f"  {index}. {item['text']}" for index, item in enumerate(answer["differences"], start=1)]
    return [*lines, *(f"    {text}" for text in answer["code"]["diff"])]
