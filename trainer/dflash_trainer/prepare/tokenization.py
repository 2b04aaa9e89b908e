"""A conversation through the chat template, to token ids and a mask that is 1 on the answers only.

Where an answer lies in the rendered text is found by rendering once more with that answer replaced: what the two
texts share before and after it is the template's. This holds for templates that rewrite earlier turns.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from dflash_trainer.prepare.conversations import Message

_STAND_IN = "\ue000\ue001"


@dataclass(frozen=True)
class Sample:
    """Token ids and, for each, 1 where it belongs to an answer."""

    input_ids: tuple[int, ...]
    loss_mask: tuple[int, ...]


class ChatTokenizer:
    """A Hugging Face tokenizer with a chat template. Raises ValueError where a conversation does not fit it."""

    def __init__(self, tokenizer: Any) -> None:
        self.tokenizer = tokenizer
        self._added = sorted(map(str, tokenizer.get_added_vocab()), key=len, reverse=True)
        self.end_of_turn = self._end_of_turn()

    def prompt_ids(self, messages: Sequence[Message]) -> Sample:
        """Ids up to where the next answer begins; earlier answers are masked in."""
        text = self._render(messages, generate=True)
        return self._segments(text, self._spans(text, messages, generate=True))

    def sample(self, messages: Sequence[Message]) -> Sample:
        """Ids of the whole conversation, cut after the last answer."""
        text = self._render(messages)
        spans = self._spans(text, messages)
        return self._segments(text[: spans[-1][1]], spans)

    def _end_of_turn(self) -> int | None:
        text = self._render([Message("user", "a"), Message("assistant", "b")])
        answer = self._segments(text, self._spans(text, [Message("user", "a"), Message("assistant", "b")]))
        last = [i for i, on in zip(answer.input_ids, answer.loss_mask, strict=True) if on][-1]
        return last if self.tokenizer.convert_ids_to_tokens(last) in self._added else None

    def _render(self, messages: Sequence[Message], *, generate: bool = False) -> str:
        turns = [message.as_dict() for message in messages]
        text: str = self.tokenizer.apply_chat_template(turns, tokenize=False, add_generation_prompt=generate)
        return text

    def _spans(self, text: str, messages: Sequence[Message], *, generate: bool = False) -> list[tuple[int, int]]:
        """Start and end of every answer in `text`, the end-of-turn token included."""
        spans = []
        for index, message in enumerate(messages):
            if message.role != "assistant":
                continue
            changed = [*messages[:index], Message("assistant", _STAND_IN), *messages[index + 1 :]]
            other = self._render(changed, generate=generate)
            start = _shared(text, other)
            after = _shared(text[start:][::-1], other[start:][::-1])
            end = len(text) - after
            if start >= end:
                raise ValueError(f"the chat template leaves out turn {index}")
            spans.append((start, end + self._turn_end(text[end:])))
        return spans

    def _turn_end(self, rest: str) -> int:
        """Length of the special token (and white space before it) that closes an answer."""
        blank = len(rest) - len(rest.lstrip())
        return next((blank + len(token) for token in self._added if rest.startswith(token, blank)), 0)

    def _segments(self, text: str, spans: Sequence[tuple[int, int]]) -> Sample:
        """Tokenize prompt and answer parts apart, as they are when the target is served."""
        ids: list[int] = []
        mask: list[int] = []
        position = 0
        for start, end in [*spans, (len(text), len(text))]:
            for piece, on in ((text[position:start], 0), (text[start:end], 1)):
                tokens = self.tokenizer(piece, add_special_tokens=False)["input_ids"] if piece else []
                ids += tokens
                mask += [on] * len(tokens)
            position = end
        return Sample(tuple(ids), tuple(mask))


def _shared(one: str, other: str) -> int:
    """Characters that two texts have in common at their beginning."""
    return next((i for i, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))
