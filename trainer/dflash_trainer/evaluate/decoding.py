"""Greedy decoding of one sequence, with and without the drafter; both through the same memories and layers."""

# Tensor letters: see dflash_trainer/__init__.py.

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from dflash_trainer.evaluate.cached_drafter import CachedDrafter
from dflash_trainer.evaluate.cached_target import CachedTarget
from dflash_trainer.evaluate.recorded import RecordedStep
from dflash_trainer.loss.head import HeadProducts
from dflash_trainer.pipeline.warmup import DrafterSite
from dflash_trainer.target import Target


@dataclass(frozen=True)
class Decoded:
    """An answer: its tokens, the time spent after the first one, and how many tokens each step gave."""

    tokens: tuple[int, ...]
    seconds: float
    produced: tuple[int, ...]


class Decoder:
    """Answers prompts, one at a time. `capacity` is the longest prompt and answer together.

    `compiled` compiles the layers of the two steps that repeat; `graphed` (CUDA) records each as one graph.
    """

    def __init__(
        self, target: Target, site: DrafterSite, head: HeadProducts, *, capacity: int, compiled: bool, graphed: bool
    ) -> None:
        room = -(-(capacity + 2 * site.drafter.shape.block_size) // 64) * 64
        self.block = site.drafter.shape.block_size
        self.target = CachedTarget(target, room)
        self.drafter = CachedDrafter(site, head, room)
        self._device = target.device
        self._compiled = compiled
        self._token_1 = torch.zeros(1, dtype=torch.int64, device=self._device)
        self._start = torch.zeros((), dtype=torch.int64, device=self._device)
        self._plain = RecordedStep(self._plain_step, self._device, graphed=graphed)
        self._speculative = RecordedStep(self._speculative_step, self._device, graphed=graphed)

    def warm(self) -> None:
        """Compile and record both steps."""
        for step in (self._plain, self._speculative):
            self._prefill([0, 0])
            step.record()

    def plain(self, prompt: Sequence[int], *, limit: int, stop: int | None) -> Decoded:
        """The target alone, a token a step."""
        return self._decode(prompt, self._plain, limit=limit, stop=stop)

    def speculative(self, prompt: Sequence[int], *, limit: int, stop: int | None) -> Decoded:
        """The drafter proposes blocks; the target keeps the tokens it would have written itself."""
        return self._decode(prompt, self._won_tokens, limit=limit, stop=stop)

    def best_two(self, tokens: Sequence[int]) -> tuple[float, float]:
        """The target's two best logits after `tokens`."""
        self.target.reset()
        logits, _ = self.target.forward(self._ids(tokens), torch.zeros_like(self._start), keep=True)
        best, second = logits[-1].float().topk(2).values.tolist()
        return best, second

    def _decode(self, prompt: Sequence[int], step: Callable[[], list[int]], *, limit: int, stop: int | None) -> Decoded:
        tokens = [self._prefill(prompt)]
        produced = []
        started = time.perf_counter()
        while len(tokens) < limit and tokens[-1] != stop:
            new = step()[: limit - len(tokens)]
            if stop in new:
                new = new[: new.index(stop) + 1]
            tokens += new
            produced.append(len(new))
        return Decoded(tuple(tokens), time.perf_counter() - started, tuple(produced))

    def _won_tokens(self) -> list[int]:
        won, *choice = self._speculative()
        return choice[:won]

    def _prefill(self, prompt: Sequence[int]) -> int:
        """Read the prompt; returns the first token of the answer."""
        self.target.reset()
        self._start.zero_()
        logits, states = self.target.forward(self._ids(prompt), self._start, keep=True)
        self.drafter.append(states, self._start)
        self._start.fill_(len(prompt))
        self._token_1.copy_(logits[-1:].argmax(-1))
        return int(self._token_1.item())

    def _plain_step(self) -> Tensor:
        logits, _ = self.target.forward(self._token_1[None], self._start, keep=True, compiled=self._compiled)
        self._token_1.copy_(logits.argmax(-1))
        self._start += 1
        return self._token_1

    def _speculative_step(self) -> Tensor:
        """Draft, verify, move on; returns how many tokens were won, then the target's choices [1 + B]."""
        block_K = self.drafter.draft(self._token_1, self._start, compiled=self._compiled)
        logits, states = self.target.forward(block_K[None], self._start, keep=False, compiled=self._compiled)
        choice_K = logits.argmax(-1)
        won = (block_K[1:] == choice_K[:-1]).long().cumprod(0).sum() + 1
        self.target.keep(won)
        self.drafter.append(states, self._start)
        self._start += won
        self._token_1.copy_(choice_K.index_select(0, (won - 1)[None]))
        return torch.cat((won[None], choice_K))

    def _ids(self, tokens: Sequence[int]) -> Tensor:
        return torch.tensor([list(tokens)], dtype=torch.int64, device=self._device)
