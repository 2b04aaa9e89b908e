"""Decode held-out prompts with and without the drafter; compare the answers and the speed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch

from dflash_trainer.data.arrow import ArrowSamples
from dflash_trainer.evaluate.decoding import Decoded, Decoder
from dflash_trainer.loss.head import HeadProducts
from dflash_trainer.pipeline.warmup import DrafterSite
from dflash_trainer.records.progress import Progress
from dflash_trainer.target import Target

if TYPE_CHECKING:
    from dflash_trainer.config.schema import Config

_TIE = {torch.float32: 1e-3, torch.bfloat16: 0.25}
"""Two logits closer than this may swap when the same product is computed in another shape."""


@dataclass(frozen=True, kw_only=True)
class Speed:
    """Speed of one decoding method over all prompts; the first token of each answer is not counted."""

    tokens: int
    steps: int
    seconds: float
    tok_s: float


@dataclass(frozen=True, kw_only=True)
class Difference:
    """First position where two answers differ, with the target's logit margin there."""

    prompt: int
    position: int
    plain: int | None
    speculative: int | None
    margin: float
    near_tie: bool


@dataclass(frozen=True, kw_only=True)
class RealDecoding:
    """Results of greedy decoding, one sequence at a time."""

    prompts: int
    max_new_tokens: int
    dtype: str
    device: str
    equal: bool
    """True when every speculative answer equals the target's, token for token."""
    plain: Speed
    speculative: Speed
    speed_up: float
    accept_len: float
    """Tokens per step of the target."""
    acceptance_per_position: tuple[float, ...]
    """Share of steps with at least k accepted draft tokens, for k = 1..K-1."""
    differences: tuple[Difference, ...]


def decode_held_out(
    config: Config, target: Target, site: DrafterSite, head: HeadProducts, *, prompts: int, limit: int
) -> RealDecoding:
    """Decode the first `prompts` prompts of data.eval_path with both methods, at most `limit` tokens each."""
    questions = held_out_prompts(Path(config.data.eval_path), prompts)
    capacity = max(map(len, questions)) + limit
    cuda = target.device.type == "cuda"
    compiled, graphed = config.runtime.compile and cuda, config.target.cuda_graphs and cuda
    decoder = Decoder(target, site, head, capacity=capacity, compiled=compiled, graphed=graphed)
    decoder.warm()
    stop = end_of_turn(target)
    plain, speculative = [], []
    with Progress("decoding", len(questions)) as progress:
        for prompt in questions:
            plain.append(decoder.plain(prompt, limit=limit, stop=stop))
            speculative.append(decoder.speculative(prompt, limit=limit, stop=stop))
            progress.advance(1)
    differences = tuple(
        _difference(decoder, number, prompt, a, b)
        for number, (prompt, a, b) in enumerate(zip(questions, plain, speculative, strict=True))
        if a.tokens != b.tokens
    )
    speeds = _speed(plain), _speed(speculative)
    return RealDecoding(
        prompts=len(questions),
        max_new_tokens=limit,
        dtype=str(target.dtype).removeprefix("torch."),
        device=torch.cuda.get_device_name(target.device) if target.device.type == "cuda" else "cpu",
        equal=not differences,
        plain=speeds[0],
        speculative=speeds[1],
        speed_up=speeds[1].tok_s / speeds[0].tok_s if speeds[0].tok_s else 0.0,
        accept_len=speeds[1].tokens / max(1, speeds[1].steps),
        acceptance_per_position=_per_position(speculative, site.drafter.shape.block_size),
        differences=differences,
    )


def held_out_prompts(folder: Path, count: int) -> list[list[int]]:
    """Return the token ids before the first answer of the first `count` samples."""
    samples = ArrowSamples.open(folder)
    found = []
    for number in range(min(count, len(samples))):
        stored = samples[number]
        first = int(np.argmax(stored.loss_mask != 0))
        if first:
            found.append([int(token) for token in stored.input_ids[:first]])
    return found


def end_of_turn(target: Target) -> int | None:
    """Return the end-of-turn token; None when the target has no tokenizer or no such token."""
    from dflash_trainer.errors import InputError
    from dflash_trainer.prepare.tokenization import ChatTokenizer

    try:
        tokenizer = target.tokenizer
    except InputError:
        return None
    return ChatTokenizer(tokenizer).end_of_turn if tokenizer.chat_template else tokenizer.eos_token_id


def _difference(decoder: Decoder, number: int, prompt: Sequence[int], plain: Decoded, other: Decoded) -> Difference:
    a, b = plain.tokens, other.tokens
    position = next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))
    best, second = decoder.best_two([*prompt, *a[:position]])
    return Difference(
        prompt=number,
        position=position,
        plain=a[position] if position < len(a) else None,
        speculative=b[position] if position < len(b) else None,
        margin=best - second,
        near_tie=best - second < _TIE[decoder.target.target.dtype],
    )


def _speed(answers: Sequence[Decoded]) -> Speed:
    tokens = sum(len(answer.tokens) - 1 for answer in answers)
    seconds = sum(answer.seconds for answer in answers)
    steps = sum(len(answer.produced) for answer in answers)
    return Speed(tokens=tokens, steps=steps, seconds=seconds, tok_s=tokens / seconds if seconds else 0.0)


def _per_position(answers: Sequence[Decoded], block: int) -> tuple[float, ...]:
    produced = [count for answer in answers for count in answer.produced]
    return tuple(sum(count > k for count in produced) / max(1, len(produced)) for k in range(1, block))
