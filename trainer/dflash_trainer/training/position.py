"""Position of a run: its state except for tensors."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True, kw_only=True)
class Position:
    """State at the end of a step, as stored in trainer.json."""

    step: int = 0
    next_batch: int = 0
    """Number of the next batch to train on."""
    tokens: int = 0
    """Tokens trained on, without padding."""
    skipped_batches: int = 0
    skipped_samples: int = 0
    bad_run: int = 0
    """Consecutive skipped batches."""
    best_step: int = 0
    best_accept_len: float = 0.0
    """Best held-out accept length so far; 0 before the first evaluation."""

    def to_dict(self) -> dict[str, Any]:
        """Return JSON values."""
        return asdict(self)

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> Position:
        """Build a position from to_dict() values; unknown keys of other versions are ignored."""
        return cls(**{name: values[name] for name in cls.__dataclass_fields__ if name in values})
