"""Evaluation of a trained drafter on held-out text and in real decoding, with a JSON report."""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from dflash_trainer import compilation
from dflash_trainer.checkpoint.trained_drafter import find_trained
from dflash_trainer.errors import ExitCode, TrainerError
from dflash_trainer.evaluate.held_out import HeldOut, measure_held_out
from dflash_trainer.evaluate.real_decoding import RealDecoding, decode_held_out
from dflash_trainer.files import write_json
from dflash_trainer.loss.head import PlainHead
from dflash_trainer.pipeline.warmup import place_drafter
from dflash_trainer.target import load_target

if TYPE_CHECKING:
    from dflash_trainer.config.schema import Config


@dataclass(frozen=True, kw_only=True)
class EvaluationJob:
    """Drafter to evaluate and size of the evaluation."""

    checkpoint: Path
    report: Path | None
    prompts: int
    """Number of held-out prompts to decode; 0: no decoding."""
    max_new_tokens: int


class DecodingDiffers(TrainerError):
    """Speculative decoding differs from the target's own answer, and not at a near tie."""

    name = "decoding_differs"
    exit_code = ExitCode.WORKER


def evaluate(job: EvaluationJob, config: Config) -> dict[str, Any]:
    """Evaluate the drafter, print the results, write the report and return it.

    Raises:
        InputError: unusable weights or data.
        DecodingDiffers: the answers differ; the report is written first.
    """
    started = time.time()
    trained = find_trained(job.checkpoint)
    config = replace(config, drafter=replace(config.drafter, init_from=str(trained.weights)))
    compilation.configure_thread(len(config.data.buckets) + 2)
    print(f"evaluating {trained.name} of {trained.folder.parent} against {config.target.path}", flush=True)
    device = config.target.devices[0]
    target = load_target(config, device, all_layers=job.prompts > 0)
    site = place_drafter(config, target, device)
    head = PlainHead(site.head) if isinstance(site.head, Tensor) else site.head
    held_out = measure_held_out(config, target, site, head)
    _print_held_out(held_out)
    report: dict[str, Any] = {
        "ok": True,
        "problems": [],
        "drafter": str(trained.folder),
        "target": config.target.path,
        "torch": torch.__version__,
        "held_out": asdict(held_out),
        "decoding": None,
    }
    if job.prompts > 0:
        decoding = decode_held_out(config, target, site, head, prompts=job.prompts, limit=job.max_new_tokens)
        _print_decoding(decoding)
        report["decoding"] = asdict(decoding)
        report["problems"] = _problems(decoding)
        report["ok"] = not report["problems"]
    report["seconds"] = round(time.time() - started, 1)
    if job.report is not None:
        job.report.parent.mkdir(parents=True, exist_ok=True)
        write_json(job.report, report)
        print(f"report: {job.report}", flush=True)
    if not report["ok"]:
        raise DecodingDiffers(
            report["problems"][0], "evaluate again with --set target.dtype=float32; if they still differ, report a bug"
        )
    return report


def _problems(decoding: RealDecoding) -> list[str]:
    return [
        f"prompt {d.prompt}: the answers differ from token {d.position} on (target {d.plain}, speculative "
        f"{d.speculative}); the margin between the target's two highest logits is {d.margin:.4g}"
        for d in decoding.differences
        if not d.near_tie
    ]


def _print_held_out(held_out: HeldOut) -> None:
    print(
        f"held-out: {held_out.samples} samples, {held_out.blocks} blocks, loss {held_out.loss:.4f}, "
        f"accept length {held_out.accept_len:.3f}",
        flush=True,
    )
    print("acceptance at positions 1, 2, ...: " + _list(held_out.acceptance_per_position), flush=True)


def _print_decoding(decoding: RealDecoding) -> None:
    plain, speculative = decoding.plain, decoding.speculative
    print(
        f"decoding: {decoding.prompts} prompts, {plain.tok_s:.1f} tok/s without the drafter, "
        f"{speculative.tok_s:.1f} with it: x{decoding.speed_up:.2f}, accept length {decoding.accept_len:.3f}",
        flush=True,
    )
    print("acceptance at positions 1, 2, ...: " + _list(decoding.acceptance_per_position), flush=True)
    near = sum(d.near_tie for d in decoding.differences)
    answer = "equal token for token" if decoding.equal else f"{len(decoding.differences)} differ, {near} at near ties"
    print(f"answers with and without the drafter: {answer}", flush=True)


def _list(parts: tuple[float, ...]) -> str:
    return " ".join(f"{part:.3f}" for part in parts)
