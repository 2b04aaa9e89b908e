"""Panel that ends a health check."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dflash_ops.core import truncate
from dflash_ops.monitor.step_line import step_text

from dflash_controller.screens.status import command_lines, speed_text
from dflash_controller.screens.text import BAD, MARKS, problem_lines, rows


def health_panel(
    answer: Mapping[str, Any], judgement: Mapping[str, Any], comparison: Mapping[str, Any] | None
) -> list[str]:
    """Return the result of a health check; `comparison` is that of a slow run with the known-good one."""
    mark = MARKS["running"] if judgement["ok"] else BAD
    return [
        f"{mark} {answer.get('run_id')} is {judgement['state']}: {judgement['message']}",
        *rows(
            [
                ("pid", str(answer.get("pid") or "-")),
                ("step", step_text(answer)),
                ("speed", speed_text(answer)),
            ]
        ),
        *problem_lines(answer.get("problems") or ()),
        *command_lines(answer),
        *(slow_lines(comparison) if comparison is not None else ()),
    ]


def slow_lines(comparison: Mapping[str, Any]) -> list[str]:
    """Return the differences between a slow run and the known-good one, the most likely cause first."""
    if not comparison:
        return ["  no known-good run to compare with"]
    head = f"  differences from known-good {comparison['run_a']} ({comparison['speed']['a']['best_tok_s']} tok/s):"
    lines = [f"    {index}. {item['text']}" for index, item in enumerate(comparison["differences"], start=1)]
    listed = truncate.first_lines(lines, 10, indent="    ")
    return [head, *(listed or ["    no recorded difference: check load, clocks and temperature of the box"])]
