"""Convert a JSONL file to an Arrow dataset shard by shard; repeating the command resumes a stopped job.

`OUTPUT.partial/` holds finished shards and plan.json (input hash and options). It is renamed to OUTPUT at the end.
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
    """Everything that determines the output, byte for byte."""

    input: Path
    output: Path
    target: str
    regenerate: bool
    max_length: int
    rows_per_shard: int
    options: tuple[tuple[str, str], ...] = ()

    def plan(self) -> dict[str, Any]:
        """Return the values that must be equal when a stopped job is resumed."""
        with self.input.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256") if hasattr(hashlib, "file_digest") else _digest(file)
        plan = asdict(self) | {"input_sha256": digest.hexdigest(), "options": dict(self.options)}
        return {key: plan[key] for key in sorted(plan) if key not in ("input", "output")}


@dataclass(frozen=True)
class PrepareResult:
    """Counts of written samples and skipped rows."""

    samples: int
    tokens: int
    supervised_tokens: int
    bad_rows: tuple[BadRow, ...]


def prepare(job: PrepareJob, tokenize: Tokenize) -> PrepareResult:
    """Run or resume the job.

    Raises:
        InputError: the input is unusable, or the output exists already.
    """
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
            f"{partial}: its input or options differ from this command", "remove it, or repeat the original command"
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
    """Tokenize one shard and write it atomically, with its bad rows in a second file."""
    from dflash_trainer.data.arrow import write_samples

    conversations = [row for row in rows if isinstance(row, Conversation)]
    bad = [row for row in rows if isinstance(row, BadRow)]
    kept: list[tuple[str, Sample]] = []
    for conversation, outcome in zip(conversations, tokenize(conversations), strict=True):
        checked = outcome if isinstance(outcome, BadRow) else _truncate(conversation, outcome, max_length)
        if isinstance(checked, BadRow):
            bad.append(checked)
        else:
            kept.append((conversation.row_id, checked))
    write_json(file.with_suffix(".bad.json"), [asdict(row) for row in sorted(bad, key=lambda row: row.line)])
    staging = file.with_suffix(".tmp")
    write_samples(staging, ((row_id, s.input_ids, s.loss_mask) for row_id, s in kept))
    staging.rename(file)


def _truncate(conversation: Conversation, sample: Sample, max_length: int) -> Sample | BadRow:
    """Truncate to max_length; a usable sample has two consecutive answer tokens."""
    cut = Sample(sample.input_ids[:max_length], sample.loss_mask[:max_length])
    if any(a and b for a, b in itertools.pairwise(cut.loss_mask)):
        return cut
    reason = "no answer of two tokens" + (f" in the first {max_length}" if len(sample.input_ids) > max_length else "")
    return BadRow(conversation.line, conversation.row_id, reason)


def _assemble(partial: Path, job: PrepareJob) -> PrepareResult:
    """Write the dataset from the shards into `partial`, then remove the shards."""
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
