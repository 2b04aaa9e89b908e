"""Answers written by the target itself: a drafter learns what its target would say."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from dflash_trainer.config.target_shape import TargetLocation
from dflash_trainer.prepare.conversations import Conversation, Message
from dflash_trainer.prepare.tokenization import ChatTokenizer, Sample


@dataclass(frozen=True, kw_only=True)
class Sampling:
    """How answers are drawn; temperature 0 is greedy, and the seed is mixed with each row's line."""

    max_new_tokens: int = 512
    temperature: float = 0.0
    seed: int = 0


class Regenerator:
    """Writes answers for batches of conversations with the whole target model."""

    def __init__(self, model: Any, chat: ChatTokenizer, sampling: Sampling) -> None:
        self.model = model
        self.chat = chat
        self.sampling = sampling

    def answer(self, conversations: Sequence[Conversation]) -> list[Sample]:
        """Replace every assistant turn (or add the missing last one), turn by turn; one sample a conversation."""
        histories: list[list[Message]] = [[] for _ in conversations]
        samples: list[Sample | None] = [None] * len(conversations)
        queues = [_user_turns(conversation) for conversation in conversations]
        while any(queues):
            active = [i for i, queue in enumerate(queues) if queue]
            for i in active:
                histories[i] += queues[i].pop(0)
            prompts = [self.chat.prompt_ids(histories[i]) for i in active]
            for i, prompt, answer in zip(
                active, prompts, self._generate(prompts, conversations[active[0]]), strict=True
            ):
                samples[i] = Sample(prompt.input_ids + answer, prompt.loss_mask + (1,) * len(answer))
                text = self.chat.tokenizer.decode(answer, skip_special_tokens=True)
                histories[i].append(Message("assistant", text))
                if not text.strip() or answer[-1] != self.chat.end_of_turn:
                    queues[i].clear()
        return [sample for sample in samples if sample is not None]

    @torch.no_grad()
    def _generate(self, prompts: Sequence[Sample], first: Conversation) -> list[tuple[int, ...]]:
        longest = max(len(prompt.input_ids) for prompt in prompts)
        end = self.chat.end_of_turn
        pad = end if end is not None else 0
        ids = torch.full((len(prompts), longest), pad)
        attended = torch.zeros_like(ids)
        for row, prompt in enumerate(prompts):
            ids[row, longest - len(prompt.input_ids) :] = torch.tensor(prompt.input_ids)
            attended[row, longest - len(prompt.input_ids) :] = 1
        torch.manual_seed(self.sampling.seed * 1_000_003 + first.line)
        device = self.model.device
        out = self.model.generate(
            input_ids=ids.to(device),
            attention_mask=attended.to(device),
            max_new_tokens=self.sampling.max_new_tokens,
            do_sample=self.sampling.temperature > 0,
            temperature=self.sampling.temperature or None,
            top_k=None,
            top_p=None,
            eos_token_id=end,
            pad_token_id=pad,
        )
        return [_until(row, end) for row in out[:, longest:].tolist()]


def _user_turns(conversation: Conversation) -> list[list[Message]]:
    """The turns to answer, each with the system turn before it where there is one."""
    groups: list[list[Message]] = [[]]
    for message in conversation.messages:
        if message.role != "assistant":
            groups[-1].append(message)
        if message.role == "user":
            groups.append([])
    return [group for group in groups if group]


def _until(tokens: list[int], end: int | None) -> tuple[int, ...]:
    """Tokens up to and with the first end-of-turn."""
    return tuple(tokens[: tokens.index(end) + 1] if end in tokens else tokens)


def load_language_model(location: TargetLocation, dtype: str, device: str) -> Any:
    """The whole target with its head, ready to write answers."""
    from transformers import AutoModelForCausalLM

    assert location.path is not None
    folder, options = location.path, {"dtype": getattr(torch, dtype)}
    if location.kind == "gguf":
        folder, options = location.path.parent, options | {"gguf_file": location.path.name}
    model: Any = AutoModelForCausalLM.from_pretrained(str(folder), **options)
    return model.to(device).eval()
