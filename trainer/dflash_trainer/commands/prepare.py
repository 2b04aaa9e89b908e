"""The command `prepare`: tokenize JSONL conversations into a dataset."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from dflash_trainer.commands.arguments import at_least, folder_to_write, not_negative
from dflash_trainer.config.schema import Config
from dflash_trainer.config.target_shape import TargetLocation, locate
from dflash_trainer.errors import InputError
from dflash_trainer.prepare.conversations import BadRow, Conversation
from dflash_trainer.prepare.driver import PrepareJob, Tokenize, prepare
from dflash_trainer.prepare.tokenization import ChatTokenizer, Sample

HELP = "turn JSONL conversations into a tokenized dataset"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of this command."""
    parser.add_argument("--input", type=Path, required=True, help="JSONL conversations")
    parser.add_argument("--output", type=folder_to_write, required=True, help="dataset folder to create")
    parser.add_argument("--regenerate", action="store_true", help="replace every answer by a generated one")
    parser.add_argument(
        "--max-length", type=at_least(0), default=0, help="maximum tokens per sample (default: the last bucket)"
    )
    parser.add_argument("--max-new-tokens", type=at_least(1), default=512, help="with --regenerate: longest answer")
    parser.add_argument("--temperature", type=not_negative, default=0.0, help="with --regenerate: 0 is greedy")
    parser.add_argument(
        "--batch", type=at_least(1), default=16, help="with --regenerate: conversations per batch"
    )


def run(arguments: argparse.Namespace, config: Config) -> None:
    """Prepare the dataset and print the written and skipped rows."""
    location = locate(config.target.path)
    chat = ChatTokenizer(load_tokenizer(location))
    job = PrepareJob(
        input=arguments.input.absolute(),
        output=arguments.output,
        target=Path(config.target.path).name,
        regenerate=arguments.regenerate,
        max_length=arguments.max_length or config.data.buckets[-1],
        rows_per_shard=arguments.batch if arguments.regenerate else 1000,
        options=_options(arguments),
    )
    tokenize = _regenerating(arguments, config, location, chat) if arguments.regenerate else _tokenizing(chat)
    result = prepare(job, tokenize)
    for row in result.bad_rows[:20]:
        print(f"skipped line {row.line} {row.row_id}: {row.reason}", flush=True)
    if len(result.bad_rows) > 20:
        print(f"skipped {len(result.bad_rows) - 20} more, all listed in {job.output}/bad_rows.json", flush=True)
    print(
        f"wrote {result.samples} samples, {result.tokens} tokens, {result.supervised_tokens} supervised, "
        f"{len(result.bad_rows)} rows skipped: {job.output}",
        flush=True,
    )


def load_tokenizer(location: TargetLocation) -> Any:
    """Return the target's tokenizer.

    Raises:
        InputError: the target has no tokenizer or no chat template.
    """
    from transformers import AutoTokenizer

    if location.path is None:
        raise InputError("target.path = random: has no tokenizer", "name real weights")
    if location.kind == "gguf":
        tokenizer = AutoTokenizer.from_pretrained(str(location.path.parent), gguf_file=location.path.name)
    else:
        tokenizer = AutoTokenizer.from_pretrained(str(location.path))
    if not tokenizer.chat_template:
        raise InputError(f"{location.path}: the tokenizer has no chat template", "use an instruction-tuned target")
    return tokenizer


def _options(arguments: argparse.Namespace) -> tuple[tuple[str, str], ...]:
    if not arguments.regenerate:
        return ()
    return tuple((name, str(getattr(arguments, name))) for name in ("max_new_tokens", "temperature", "batch"))


def _tokenizing(chat: ChatTokenizer) -> Tokenize:
    def one(row: Conversation) -> Sample | BadRow:
        try:
            return chat.sample(row.messages)
        except ValueError as error:
            return BadRow(row.line, row.row_id, str(error))

    return lambda rows: [one(row) for row in rows]


def _regenerating(
    arguments: argparse.Namespace, config: Config, location: TargetLocation, chat: ChatTokenizer
) -> Tokenize:
    from dflash_trainer.prepare.regenerate import Regenerator, Sampling, load_language_model

    model = load_language_model(location, config.target.dtype, config.target.devices[0])
    sampling = Sampling(
        max_new_tokens=arguments.max_new_tokens, temperature=arguments.temperature, seed=config.data.seed
    )
    regenerator = Regenerator(model, chat, sampling)
    return lambda rows: list(regenerator.answer(rows)) if rows else []
