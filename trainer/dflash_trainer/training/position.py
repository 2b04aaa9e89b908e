"""How far a run is: everything of its state that is not a tensor."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True, kw_only=True)
class Position:
    """The end of a step, as trainer.json keeps it."""

    step: int = 0
    next_batch: int = 0
    """Number of the first batch not trained on."""
    tokens: int = 0
    """Tokens trained on that are not padding."""
    skipped_batches: int = 0
    skipped_samples: int = 0
    bad_run: int = 0
    """Unusable batches in a row."""
    best_step: int = 0
    best_accept_len: float = 0.0
    """Best evaluation so far; 0 before the first."""

    def to_dict(self) -> dict[str, Any]:
        """Plain values."""
        return asdict(self)

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> Position:
        """What to_dict gave; keys of other versions are ignored."""
        return cls(**{name: values[name] for name in cls.__dataclass_fields__ if name in values})
