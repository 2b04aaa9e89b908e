"""Catalogue of known failures, and the search for them in a log."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable
from typing import Any

from ..core import truncate
from .failure_catalogue import CATALOGUE


@dataclasses.dataclass(frozen=True)
class Failure:
    """One known failure; failures.yml describes the fields."""

    name: str
    cause: str
    remedy: str
    strings: tuple[str, ...] = ()
    patterns: tuple[str, ...] = ()

    def found_in(self, line: str) -> bool:
        """Return True when a log line shows this failure."""
        return any(text in line for text in self.strings) or any(re.search(text, line) for text in self.patterns)


@dataclasses.dataclass(frozen=True)
class Match:
    """A failure found in a log, with the last line that shows it."""

    failure: Failure
    line: str

    def as_problem(self) -> dict[str, str]:
        """Return an entry of a `problems` list."""
        text = f"{self.failure.cause} Log: {truncate.shorten(self.line, 300)}"
        return problem(self.failure.name, text, self.failure.remedy)


def problem(name: str, message: str, remedy: str = "") -> dict[str, str]:
    """Return one entry of a `problems` list."""
    return {"name": name, "message": message, "remedy": remedy}


def catalogue() -> list[Failure]:
    """Return all known failures."""
    return [_failure(entry) for entry in CATALOGUE]


def _failure(entry: dict[str, Any]) -> Failure:
    lists = {key: tuple(entry.get(key) or ()) for key in ("strings", "patterns")}
    return Failure(**{**entry, **lists})


def known(name: str) -> Failure:
    """Return the failure of this name, which must be in the catalogue."""
    return next(failure for failure in catalogue() if failure.name == name)


def match(lines: Iterable[str]) -> list[Match]:
    """Return each known failure in a log once, with the last line that shows it, in the order of these lines."""
    failures = catalogue()
    last: dict[str, Match] = {}
    for line in lines:
        for failure in failures:
            if failure.found_in(line):
                last.pop(failure.name, None)
                last[failure.name] = Match(failure=failure, line=line.strip())
    return list(last.values())


def explain(text: str, *, lines_shown: int = 15, where: str = "") -> list[dict[str, str]]:
    """Return the known failures in a log, or its last lines when it shows none."""
    found = match(text.splitlines())
    if found:
        return [item.as_problem() for item in found]
    tail = [line for line in text.splitlines() if line.strip()][-lines_shown:]
    shown = "\n".join(tail) if tail else "the log is empty"
    text = f"The log shows no known failure. Its last lines:\n{shown}"
    return [problem("unknown", text, f"read {where or 'the log'}")]
