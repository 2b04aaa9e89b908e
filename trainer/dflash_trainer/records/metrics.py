"""`metrics.jsonl`: one JSON object per step; a resume drops the lines after its checkpoint."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dflash_trainer.files import write_text


class MetricsFile:
    """Appends one JSON object per step. A full disk is reported once and never ends the run. Owner: Trainer."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._handle = file.open("a", encoding="utf-8", buffering=1)
        self._reported = False

    @classmethod
    def resume(cls, file: Path, step: int) -> MetricsFile:
        """Open `file` and keep only complete lines up to `step`."""
        if file.exists():
            lines = file.read_text(encoding="utf-8", errors="replace").splitlines()
            kept = [line for line in lines if _step_of(line) <= step]
            if len(kept) != len(lines):
                write_text(file, "".join(line + "\n" for line in kept))
        return cls(file)

    def append(self, values: Mapping[str, Any]) -> None:
        """Append one object; NaN and Inf are written as strings, because JSON has no literal for them."""
        try:
            self._handle.write(json.dumps(plain(values)) + "\n")
        except OSError as error:
            if not self._reported:
                print(f"metrics.jsonl not written: {error}", flush=True)
            self._reported = True

    def close(self) -> None:
        """Close the file."""
        try:
            self._handle.close()
        except OSError:
            self._reported = True


def plain(value: Any) -> Any:
    """Return JSON values; NaN and Inf become the strings nan, inf and -inf."""
    if isinstance(value, Mapping):
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return round(value, 7) if isinstance(value, float) and abs(value) >= 1e-3 else value


def _step_of(line: str) -> float:
    try:
        return float(json.loads(line)["step"])
    except (ValueError, KeyError, TypeError):
        return math.inf
