"""Speculative decoding gives the target's own greedy answer, token for token, for any drafter."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from dflash_trainer.config.load import config_from_dict
from dflash_trainer.config.schema import Config
from dflash_trainer.evaluate.decoding import Decoder
from dflash_trainer.loss.head import PlainHead
from dflash_trainer.model.build import initialise
from dflash_trainer.pipeline.warmup import DrafterSite, place_drafter
from dflash_trainer.target import Target, load_target
from torch import Tensor
from torch.nn import functional

FAMILIES = ("tiny", "qwen3-tiny", "qwen3.6-tiny")
PROMPT = [5, 9, 17, 33, 2, 100, 71]
BLOCK = 4


def configuration(path: str, window: int = 0) -> Config:
    drafter = {"mask_token_id": 3, "dtype": "float32", "num_layers": 2, "block_size": BLOCK, "num_captured": 2}
    tables: dict[str, Any] = {
        "target": {"path": path, "dtype": "float32"},
        "drafter": drafter | {"sliding_window": window},
        "objective": {"num_anchors": 4},
        "data": {"buckets": [64], "batch_tokens": 64},
        "runtime": {"compile": False},
    }
    return config_from_dict(tables, base=Path.cwd())


def build_decoder(path: str, window: int = 0) -> tuple[Target, DrafterSite, Decoder]:
    config = configuration(path, window)
    target = load_target(config, "cpu", all_layers=True)
    site = place_drafter(config, target, "cpu")
    assert isinstance(site.head, PlainHead)
    return target, site, Decoder(target, site, site.head, capacity=100, compiled=False, graphed=False)


@pytest.mark.parametrize("window", [0, 6])
@pytest.mark.parametrize("family", FAMILIES)
def test_drafter_that_is_always_wrong_does_not_change_the_answer(family: str, window: int) -> None:
    _, _, decoder = build_decoder(f"random:{family}", window)
    plain = decoder.plain(PROMPT, limit=30, stop=None)
    speculative = decoder.speculative(PROMPT, limit=30, stop=None)
    assert len(plain.tokens) == 30
    assert speculative.tokens == plain.tokens


@pytest.mark.parametrize("family", FAMILIES)
def test_answer_is_the_same_for_any_accepted_length(family: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """One slot of each block is wrong, in rotation: the tokens before it are accepted and the others leave no trace."""
    _, _, decoder = build_decoder(f"random:{family}")
    answer = decoder.plain(PROMPT, limit=40, stop=None).tokens
    accepted_drafts = accepted_draft_counts()

    def draft(token_1: Tensor, start: Tensor, *, compiled: bool = False) -> Tensor:
        first = int(start) - len(PROMPT)
        block = [*answer[first : first + BLOCK], *[0] * BLOCK][:BLOCK]
        wrong = next(accepted_drafts) + 1
        return torch.tensor([(token + 1) % 256 if slot == wrong else token for slot, token in enumerate(block)])

    monkeypatch.setattr(decoder.drafter, "draft", draft)
    speculative = decoder.speculative(PROMPT, limit=40, stop=None)
    assert speculative.tokens == answer
    assert speculative.produced[:8] == (1, 2, 3, 4, 1, 2, 3, 4)


def accepted_draft_counts() -> Iterator[int]:
    while True:
        yield from range(BLOCK)


@pytest.mark.parametrize("window", [0, 3, 6])
def test_cached_drafter_equals_the_training_forward(window: int) -> None:
    """KV cache and positions of decoding give the same drafts as the training forward at every anchor."""
    target, site, decoder = build_decoder("random:qwen3-tiny", window)
    initialise(site.drafter, 11)
    with torch.no_grad():
        for parameter in site.drafter.parameters():
            parameter.mul_(3.0)
    ids = torch.randint(256, (1, 40), generator=torch.Generator().manual_seed(2))
    states = target.capture(ids)
    anchors = torch.arange(1, 36)[None]
    tokens = functional.pad(ids[:, 1:36], (0, 1), value=3)
    hidden = site.drafter(functional.embedding(tokens, site.embed), states, anchors, torch.ones_like(anchors) > 0)
    trained = (hidden @ target.head_weight.T).argmax(-1).view(-1, BLOCK - 1)
    drafter = decoder.drafter
    for start in range(1, 36):
        drafter.append(states[:, start - 1 : start + 2], torch.tensor(start - 1))
        block = drafter.draft(ids[0, start : start + 1], torch.tensor(start))
        assert block.tolist() == [int(ids[0, start]), *trained[start - 1].tolist()]
    assert len(set(map(tuple, trained.tolist()))) > 10, "drafts are too similar to compare"


def test_both_methods_end_with_the_stop_token() -> None:
    _, _, decoder = build_decoder("random:qwen3.6-tiny")
    answer = decoder.plain(PROMPT, limit=30, stop=None).tokens
    stop = next(token for position, token in enumerate(answer) if position > 4 and token not in answer[:position])
    expected = answer[: answer.index(stop) + 1]
    assert decoder.plain(PROMPT, limit=30, stop=stop).tokens == expected
    assert decoder.speculative(PROMPT, limit=30, stop=stop).tokens == expected


@pytest.mark.parametrize("family", ["llama", "qwen3", "qwen3_5_text"])
def test_answer_equals_transformers_generate(family: str, tmp_path: Path) -> None:
    model = published_model(family)
    model.save_pretrained(tmp_path / "target")
    _, _, decoder = build_decoder(str(tmp_path / "target"))
    with torch.no_grad():
        reference = model.generate(
            torch.tensor([PROMPT]), max_new_tokens=24, do_sample=False, eos_token_id=None, pad_token_id=0
        )[0, len(PROMPT) :].tolist()
    assert list(decoder.plain(PROMPT, limit=24, stop=None).tokens) == reference
    assert list(decoder.speculative(PROMPT, limit=24, stop=None).tokens) == reference


def published_model(family: str) -> Any:
    """Return a tiny random transformers model of `family`."""
    from transformers import AutoConfig, AutoModelForCausalLM

    values: dict[str, Any] = {
        "vocab_size": 256,
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_hidden_layers": 8,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "initializer_range": 0.2,
        "tie_word_embeddings": False,
    }
    if family == "qwen3_5_text":
        values |= {"linear_num_key_heads": 2, "linear_num_value_heads": 4}
        values |= {"linear_key_head_dim": 16, "linear_value_head_dim": 16}
    torch.manual_seed(4)
    return AutoModelForCausalLM.from_config(AutoConfig.for_model(family, **values)).float().eval()
