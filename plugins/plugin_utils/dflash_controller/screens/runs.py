"""List of the runs of a box."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dflash_ops.core import durations

from dflash_controller.screens.text import number, table

HEAD = ("RUN", "START (UTC)", "TOOK", "STEP", "BEST TOK/S", "LOSS", "STATE", "")


def runs_screen(answer: Mapping[str, Any]) -> list[str]:
    """Return the runs as a table, newest last."""
    if not answer["runs"]:
        return ["○ no run was launched yet"]
    return table(
        HEAD,
        [
            (
                row["run_id"],
                row["started_at"],
                durations.format_duration(row["seconds"]),
                number(row["step"]),
                number(row["best_tok_s"]),
                number(row["loss"], ".3f"),
                row["state"],
                ", ".join(row["marks"]),
            )
            for row in answer["runs"]
        ],
    )
