"""The command `evaluate`: accept length on held-out text and real speculative decoding."""

from __future__ import annotations

import argparse
from pathlib import Path

from dflash_trainer.commands.arguments import at_least, file_to_write, folder_to_write
from dflash_trainer.config.schema import Config

HELP = "measure a drafter: accept length on held-out data, real speculative decoding with the target"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of this command."""
    parser.add_argument(
        "--checkpoint", type=Path, required=True, help="a checkpoint, a run's folder, or an exported drafter"
    )
    parser.add_argument("--cache-dir", type=folder_to_write, help="compile caches (inductor, triton, fla)")
    parser.add_argument("--json", type=file_to_write, help="file to write the report to")
    parser.add_argument("--prompts", type=at_least(0), default=16, help="held-out prompts to answer; 0: no decoding")
    parser.add_argument("--max-new-tokens", type=at_least(2), default=128, help="longest answer")


def run(arguments: argparse.Namespace, config: Config) -> None:
    """Evaluate the drafter, print the figures and write the report."""
    from dflash_trainer.evaluate import EvaluationJob, evaluate

    job = EvaluationJob(
        checkpoint=arguments.checkpoint,
        report=arguments.json,
        prompts=arguments.prompts,
        max_new_tokens=arguments.max_new_tokens,
    )
    evaluate(job, config)
