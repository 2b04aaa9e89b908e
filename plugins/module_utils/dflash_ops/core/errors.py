"""The one error class of the package, carrying what an operator needs."""
from __future__ import annotations


class OpsError(Exception):
    """Something the operator must know: what is wrong, and what to do about it.

    Args:
        message: what is wrong, naming the variable, file or process.
        remedy: what to change or type; empty when there is nothing to do but read the message.
        facts: structured details that a caller may print or record.
    """

    def __init__(self, message: str, *, remedy: str = "", facts: dict[str, object] | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.remedy = remedy
        self.facts = facts or {}

    def __str__(self) -> str:
        return f"{self.message} Remedy: {self.remedy}" if self.remedy else self.message
