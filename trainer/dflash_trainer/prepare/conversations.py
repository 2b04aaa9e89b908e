"""Parse conversations from JSONL: the OpenAI `messages` format and the `conversations` formats."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_ROLE_OF = {
    "human": "user",
    "gpt": "assistant",
    "bot": "assistant",
    "user": "user",
    "assistant": "assistant",
    "system": "system",
    "developer": "system",
}


@dataclass(frozen=True)
class Message:
    """One turn; the drafter learns to predict the content of assistant turns."""

    role: str
    content: str

    def as_dict(self) -> dict[str, str]:
        """Return the dict that chat templates expect."""
        return {"role": self.role, "content": self.content}


@dataclass(frozen=True)
class Conversation:
    """A usable row: line number (from 1), id and turns."""

    line: int
    row_id: str
    messages: tuple[Message, ...]


@dataclass(frozen=True)
class BadRow:
    """An unusable row with the reason."""

    line: int
    row_id: str
    reason: str


def read_conversations(file: Path, *, need_answers: bool) -> Iterator[Conversation | BadRow]:
    """Yield every row of `file` in order; empty lines are skipped."""
    with file.open("rb") as lines:
        for number, line in enumerate(lines, start=1):
            if line.strip():
                yield parse_row(line, number, need_answers=need_answers)


def parse_row(line: bytes, number: int, *, need_answers: bool) -> Conversation | BadRow:
    """Parse one line; with `need_answers` at least one assistant turn is required."""
    try:
        row = json.loads(line)
    except (ValueError, UnicodeDecodeError) as error:
        return BadRow(number, "", f"not JSON ({error})")
    if not isinstance(row, dict):
        return BadRow(number, "", "not an object")
    row_id = str(row.get("id", ""))
    try:
        messages = tuple(_messages(row))
        _check_order(messages, need_answers)
    except ValueError as error:
        return BadRow(number, row_id, str(error))
    return Conversation(number, row_id or f"line-{number}", messages)


def _messages(row: dict[str, Any]) -> Iterator[Message]:
    turns = row.get("messages", row.get("conversations"))
    if not isinstance(turns, list) or not turns:
        raise ValueError("no list 'messages' or 'conversations'")
    for index, turn in enumerate(turns):
        if not isinstance(turn, dict):
            raise ValueError(f"turn {index} is not an object")
        name = turn.get("role", turn.get("from"))
        if not isinstance(name, str) or name not in _ROLE_OF:
            raise ValueError(f"turn {index} has the role {name!r}")
        yield Message(_ROLE_OF[name], _text(turn.get("content", turn.get("value")), index))


def _text(content: Any, index: int) -> str:
    """Return plain text, or the joined text parts of an OpenAI content list."""
    if isinstance(content, list) and all(isinstance(p, dict) and p.get("type") == "text" for p in content):
        content = "".join(str(part.get("text", "")) for part in content)
    if not isinstance(content, str) or not content.strip():
        raise ValueError(f"turn {index} has no text")
    return content


def _check_order(messages: tuple[Message, ...], need_answers: bool) -> None:
    turns = [m.role for m in messages if m.role != "system"]
    if any(m.role == "system" for m in messages[1:]):
        raise ValueError("a system turn follows the first turn")
    if any(role != ("user", "assistant")[i % 2] for i, role in enumerate(turns)):
        raise ValueError("user and assistant turns do not alternate, starting with the user")
    if not turns or (need_answers and "assistant" not in turns):
        raise ValueError("no assistant turn" if turns else "no user turn")
