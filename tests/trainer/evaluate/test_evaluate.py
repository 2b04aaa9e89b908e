"""The evaluate command: figures equal a brute-force count, the report is written, differing answers are an error."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from dflash_trainer.checkpoint.trained_drafter import find_trained
from dflash_trainer.errors import InputError
from dflash_trainer.evaluate import EvaluationJob, evaluate
from dflash_trainer.evaluate.cached_target import CachedTarget
from dflash_trainer.evaluate.evaluate import DecodingDiffers
from dflash_trainer.evaluate.held_out import measure_held_out
from dflash_trainer.pipeline.warmup import place_drafter
from dflash_trainer.target import load_target
from tiny_runs import TinyRun
from torch import Tensor
from torch.nn import functional

EVERY_BLOCK = ("objective.num_anchors=32", "objective.noise_std=0.0", "data.buckets=[40]")


@pytest.fixture
def run(tiny: TinyRun, tmp_path: Path) -> Path:
    """Train a run with evaluations and a best checkpoint."""
    tiny.train("run", "optimizer.max_steps=20", "evaluation.every_steps=10")
    return tmp_path / "run"


def job(run: Path, *, prompts: int) -> EvaluationJob:
    return EvaluationJob(checkpoint=run, report=run / "report.json", prompts=prompts, max_new_tokens=12)


def test_report_has_held_out_acceptance_and_equal_decoding(tiny: TinyRun, run: Path) -> None:
    evaluate(job(run, prompts=3), tiny.config())
    report = json.loads((run / "report.json").read_text())
    assert report["ok"] and report["problems"] == []
    held_out, decoding = report["held_out"], report["decoding"]
    assert held_out["samples"] == 6 and held_out["blocks"] > 0 and held_out["accept_len"] >= 1
    assert len(held_out["acceptance_per_position"]) == len(decoding["acceptance_per_position"]) == 3
    assert decoding["equal"] and decoding["plain"]["tokens"] == decoding["speculative"]["tokens"] == 33
    assert decoding["plain"]["steps"] == 33 and decoding["speculative"]["steps"] <= 33
    assert decoding["speed_up"] > 0


def test_held_out_figures_equal_a_brute_force_count(tiny: TinyRun, run: Path) -> None:
    """Draft every block of every sample separately and count in plain Python."""
    config = tiny.config(*EVERY_BLOCK, f"drafter.init_from={find_trained(run).folder}")
    target = load_target(config, "cpu")
    site = place_drafter(config, target, "cpu")
    measured = measure_held_out(config, target, site, site.head)
    blocks = [block for sample in samples(tiny) for block in checked_blocks(sample, target, site)]
    assert measured.blocks == len(blocks)
    lengths = [1 + next((k for k, right in enumerate(b) if not right), 3) for b in blocks]
    assert measured.accept_len == pytest.approx(sum(lengths) / len(lengths))
    for k in range(3):
        supervised = [b for b in blocks if b[k] is not None]
        accepted = sum(all(b[: k + 1]) for b in supervised) / len(supervised)
        assert measured.acceptance_per_position[k] == pytest.approx(accepted)
        correct = sum(bool(b[k]) for b in supervised) / len(supervised)
        assert measured.accuracy_per_position[k] == pytest.approx(correct)


def samples(tiny: TinyRun) -> list[list[int]]:
    from dflash_trainer.data.arrow import ArrowSamples

    held = ArrowSamples.open(tiny.folder / "eval")
    return [held[number].input_ids.tolist() for number in range(len(held))]


def checked_blocks(ids: list[int], target: object, site: object) -> list[list[bool | None]]:
    """Return, per anchor, the correctness of slots 1..3, None past the end. Answers begin at the third id."""
    tokens = torch.tensor([ids])
    states = target.capture(tokens)  # type: ignore[attr-defined]
    found: list[list[bool | None]] = []
    for anchor in range(2, len(ids) - 1):
        block = torch.tensor([[ids[anchor], 255]])
        where = torch.tensor([[anchor]])
        hidden = site.drafter(  # type: ignore[attr-defined]
            functional.embedding(block, site.embed),
            states,
            where,
            where > 0,  # type: ignore[attr-defined]
        )
        drafted = (hidden[0] @ target.head_weight.T).argmax(-1).tolist()  # type: ignore[attr-defined]
        text: list[int | None] = [*ids[anchor + 1 : anchor + 4], None, None, None]
        found.append([None if t is None else t == d for t, d in zip(text[:3], drafted, strict=True)])
    return found


def test_differing_answers_fail_after_the_report(tiny: TinyRun, run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Wrong logits for blocks, as from a broken cache, change the speculative answers."""
    real = CachedTarget.forward

    def forward(self: CachedTarget, ids: Tensor, start: Tensor, **options: bool) -> tuple[Tensor, Tensor]:
        logits, states = real(self, ids, start, **options)
        return (logits.roll(1, dims=-1) if ids.shape[1] == 4 else logits), states

    monkeypatch.setattr(CachedTarget, "forward", forward)
    with pytest.raises(DecodingDiffers, match="the answers differ from token"):
        evaluate(job(run, prompts=2), tiny.config())
    report = json.loads((run / "report.json").read_text())
    assert not report["ok"] and len(report["problems"]) == 2
    assert report["decoding"]["differences"][0]["margin"] > 0


def test_missing_held_out_data_is_refused(tiny: TinyRun, run: Path) -> None:
    with pytest.raises(InputError, match=r"data\.eval_path is empty"):
        evaluate(job(run, prompts=0), tiny.config('data.eval_path=""'))
