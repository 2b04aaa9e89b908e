"""Turns a JSONL file into an Arrow dataset, shard by shard: stopped anywhere, the same command goes on.

`OUTPUT.partial/` holds finished shards and plan.json (input hash and options); one rename makes it OUTPUT.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import shutil
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from dflash_trainer.errors import InputError
from dflash_trainer.files import write_json
from dflash_trainer.prepare.conversations import BadRow, Conversation, read_conversations
from dflash_trainer.prepare.tokenization import Sample
from dflash_trainer.records.progress import Progress

Tokenize = Callable[[list[Conversation]], "list[Sample | BadRow]"]


@dataclass(frozen=True, kw_only=True)
class PrepareJob:
    """What decides the output, byte for byte."""

    input: Path
    output: Path
    target: str
    regenerate: bool
    max_length: int
    rows_per_shard: int
    options: tuple[tuple[str, str], ...] = ()

    def plan(self) -> dict[str, Any]:
        """What a resumed job must have in common with the one that was stopped."""
        with self.input.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256") if hasattr(hashlib, "file_digest") else _digest(file)
        plan = asdict(self) | {"input_sha256": digest.hexdigest(), "options": dict(self.options)}
        return {key: plan[key] for key in sorted(plan) if key not in ("input", "output")}


@dataclass(frozen=True)
class PrepareResult:
    """Counts of what was written and what was left out."""

    samples: int
    tokens: int
    supervised_tokens: int
    bad_rows: tuple[BadRow, ...]


def prepare(job: PrepareJob, tokenize: Tokenize) -> PrepareResult:
    """Run or resume the job. Raises InputError for an unusable input or an output that is in the way."""
    if not job.input.is_file():
        raise InputError(f"--input = {str(job.input)!r}: no such file", "name a JSONL file of conversations")
    if job.output.exists():
        raise InputError(f"--output = {str(job.output)!r}: exists already", "remove it or choose another folder")
    partial = job.output.with_name(job.output.name + ".partial")
    _open_partial(partial, job.plan())
    total = _count_rows(job.input)
    with Progress("prepare", total) as progress:
        for index, rows in enumerate(_shards(job)):
            file = partial / f"shard-{index:05d}.arrow"
            if not file.exists():
                _write_shard(file, rows, tokenize, job.max_length)
            progress.advance(len(rows))
    result = _assemble(partial, job)
    partial.rename(job.output)
    return result


def _digest(file: Any) -> Any:
    digest = hashlib.sha256()
    while block := file.read(1 << 20):
        digest.update(block)
    return digest


def _open_partial(partial: Path, plan: dict[str, Any]) -> None:
    file = partial / "plan.json"
    if file.exists() and json.loads(file.read_text()) != plan:
        raise InputError(
            f"{partial}: made from another input or with other options", "remove it, or repeat the command that made it"
        )
    partial.mkdir(parents=True, exist_ok=True)
    if not file.exists():
        write_json(file, plan)


def _count_rows(file: Path) -> int:
    with file.open("rb") as lines:
        return sum(1 for line in lines if line.strip())


def _shards(job: PrepareJob) -> Iterator[list[Conversation | BadRow]]:
    rows = read_conversations(job.input, need_answers=not job.regenerate)
    while shard := list(itertools.islice(rows, job.rows_per_shard)):
        yield shard


def _write_shard(file: Path, rows: list[Conversation | BadRow], tokenize: Tokenize, max_length: int) -> None:
    """Tokenize one shard and put it in place whole, with its bad rows beside it."""
    from dflash_trainer.data.arrow import write_samples

    conversations = [row for row in rows if isinstance(row, Conversation)]
    bad = [row for row in rows if isinstance(row, BadRow)]
    kept: list[tuple[str, Sample]] = []
    for conversation, outcome in zip(conversations, tokenize(conversations), strict=True):
        judged = outcome if isinstance(outcome, BadRow) else _judge(conversation, outcome, max_length)
        if isinstance(judged, BadRow):
            bad.append(judged)
        else:
            kept.append((conversation.row_id, judged))
    write_json(file.with_suffix(".bad.json"), [asdict(row) for row in sorted(bad, key=lambda row: row.line)])
    aside = file.with_suffix(".tmp")
    write_samples(aside, ((row_id, s.input_ids, s.loss_mask) for row_id, s in kept))
    aside.rename(file)


def _judge(conversation: Conversation, sample: Sample, max_length: int) -> Sample | BadRow:
    """Cut to max_length; a sample needs two answer tokens side by side to be of use."""
    cut = Sample(sample.input_ids[:max_length], sample.loss_mask[:max_length])
    if any(a and b for a, b in itertools.pairwise(cut.loss_mask)):
        return cut
    reason = "no answer of two tokens" + (f" in the first {max_length}" if len(sample.input_ids) > max_length else "")
    return BadRow(conversation.line, conversation.row_id, reason)


def _assemble(partial: Path, job: PrepareJob) -> PrepareResult:
    """Write the dataset from the shards into `partial`, then drop the shards."""
    from datasets import Dataset, concatenate_datasets

    from dflash_trainer.data.arrow import ArrowSamples

    shards = sorted(partial.glob("shard-*.arrow"))
    bad = tuple(BadRow(**row) for s in shards for row in json.loads(s.with_suffix(".bad.json").read_text()))
    datasets = [d for d in (Dataset.from_file(str(shard)) for shard in shards) if len(d)]
    if not datasets:
        named = "; ".join(f"line {row.line}: {row.reason}" for row in bad[:5]) or "it is empty"
        shutil.rmtree(partial)
        raise InputError(f"{job.input}: no usable row ({named})", "correct the rows")
    scratch = partial / "dataset"
    concatenate_datasets(datasets).save_to_disk(str(scratch))
    del datasets
    for file in scratch.iterdir():
        file.rename(partial / file.name)
    scratch.rmdir()
    for shard in shards:
        shard.with_suffix(".bad.json").unlink()
        shard.unlink()
    samples = ArrowSamples.open(partial)
    tokens, supervised = samples.token_counts()
    (partial / "plan.json").rename(partial / "prepared.json")
    if bad:
        write_json(partial / "bad_rows.json", [asdict(row) for row in bad])
    return PrepareResult(len(samples), tokens, supervised, bad)
