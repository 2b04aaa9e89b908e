"""Text of one training step, with the field names and the order of the trainer's console line."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

FIELDS = (
    ("loss", "loss", ".3f"),
    ("accept_len", "accept", ".2f"),
    ("tok_s", "tok/s", ".0f"),
    ("lr", "lr", ".2e"),
    ("epoch", "epoch", "g"),
)


def step_text(answer: Mapping[str, Any]) -> str:
    """Return `20/400 loss 4.213 accept 1.35 tok/s 812 lr 6.25e-04 epoch 0`; empty before the first step.

    Args:
        answer: a status snapshot; fields that it lacks are left out.
    """
    if answer.get("step") is None:
        return ""
    total = f"/{answer['total_steps']}" if answer.get("total_steps") else ""
    parts = [f"{answer['step']}{total}"]
    for key, name, form in FIELDS:
        value = answer.get(key)
        if isinstance(value, (int, float)):
            parts.append(f"{name} {value:{form}}")
        elif value is not None:  # NaN and Inf are logged as text, since JSON has neither
            parts.append(f"{name} {value}")
    return " ".join(parts)
