"""Conversion of a conversation into token ids and a loss mask that is 1 on the answers, with the chat template.

To locate an answer in the rendered text, the conversation is rendered again with a placeholder instead of the answer:
the answer is the part between the common prefix and the common suffix of the two texts. This also works for templates
that rewrite earlier turns.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from dflash_trainer.prepare.conversations import Message

_PLACEHOLDER = "\ue000\ue001"


@dataclass(frozen=True)
class Sample:
    """Token ids, and a mask that is 1 for each token of an answer."""

    input_ids: tuple[int, ...]
    loss_mask: tuple[int, ...]


class ChatTokenizer:
    """A Hugging Face tokenizer with a chat template. Raises ValueError if the template cannot render a conversation."""

    def __init__(self, tokenizer: Any) -> None:
        self.tokenizer = tokenizer
        self._added = sorted(map(str, tokenizer.get_added_vocab()), key=len, reverse=True)
        self.end_of_turn = self._end_of_turn()

    def prompt_ids(self, messages: Sequence[Message]) -> Sample:
        """Return the token ids up to the start of the next answer; the mask is 1 on earlier answers."""
        text = self._render(messages, generate=True)
        return self._segments(text, self._spans(text, messages, generate=True))

    def sample(self, messages: Sequence[Message]) -> Sample:
        """Return the token ids of the conversation, truncated after the last answer."""
        text = self._render(messages)
        spans = self._spans(text, messages)
        return self._segments(text[: spans[-1][1]], spans)

    def _end_of_turn(self) -> int | None:
        text = self._render([Message("user", "a"), Message("assistant", "b")])
        answer = self._segments(text, self._spans(text, [Message("user", "a"), Message("assistant", "b")]))
        last = [i for i, masked in zip(answer.input_ids, answer.loss_mask, strict=True) if masked][-1]
        return last if self.tokenizer.convert_ids_to_tokens(last) in self._added else None

    def _render(self, messages: Sequence[Message], *, generate: bool = False) -> str:
        turns = [message.as_dict() for message in messages]
        text: str = self.tokenizer.apply_chat_template(turns, tokenize=False, add_generation_prompt=generate)
        return text

    def _spans(self, text: str, messages: Sequence[Message], *, generate: bool = False) -> list[tuple[int, int]]:
        """Return start and end of every answer in `text`, including the end-of-turn token."""
        spans = []
        for index, message in enumerate(messages):
            if message.role != "assistant":
                continue
            replaced = [*messages[:index], Message("assistant", _PLACEHOLDER), *messages[index + 1 :]]
            other = self._render(replaced, generate=generate)
            start = _common_prefix(text, other)
            end = len(text) - _common_prefix(text[start:][::-1], other[start:][::-1])
            if start >= end:
                raise ValueError(f"the chat template omits turn {index}")
            spans.append((start, end + self._turn_end(text[end:])))
        return spans

    def _turn_end(self, rest: str) -> int:
        """Return the length of the special token that ends an answer, with the white space before it."""
        blank = len(rest) - len(rest.lstrip())
        return next((blank + len(token) for token in self._added if rest.startswith(token, blank)), 0)

    def _segments(self, text: str, spans: Sequence[tuple[int, int]]) -> Sample:
        """Tokenize prompts and answers separately, as a server does."""
        ids: list[int] = []
        mask: list[int] = []
        position = 0
        for start, end in [*spans, (len(text), len(text))]:
            for piece, value in ((text[position:start], 0), (text[start:end], 1)):
                tokens = self.tokenizer(piece, add_special_tokens=False)["input_ids"] if piece else []
                ids += tokens
                mask += [value] * len(tokens)
            position = end
        return Sample(tuple(ids), tuple(mask))


def _common_prefix(a: str, b: str) -> int:
    """Return the length of the common prefix of two texts."""
    return len(os.path.commonprefix([a, b]))  # noqa: RUF071 - characters, not path components
