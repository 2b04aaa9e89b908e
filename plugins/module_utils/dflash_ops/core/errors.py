"""Error class of the package: a message and a remedy for the operator."""
from __future__ import annotations


class OpsError(Exception):
    """Problem that the operator has to solve.

    Args:
        message: the problem, naming the variable, file or process.
        remedy: a setting to change or a command to run; empty if there is none.
        facts: structured details for a caller to print or record.
    """

    def __init__(self, message: str, *, remedy: str = "", facts: dict[str, object] | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.remedy = remedy
        self.facts = facts or {}

    def __str__(self) -> str:
        return f"{self.message} Remedy: {self.remedy}" if self.remedy else self.message
