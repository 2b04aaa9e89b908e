"""The verb `evaluate`."""

from __future__ import annotations

import argparse
from pathlib import Path

from dflash_trainer.config import Config


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options beside --config and --set."""
    parser.add_argument(
        "--checkpoint", type=Path, required=True, help="a checkpoint, a run's folder, or an exported drafter"
    )
    parser.add_argument("--json", type=Path, help="file for the report")
    parser.add_argument("--no-decode", action="store_true", help="held-out data only, no generation")
    parser.add_argument("--prompts", type=int, default=16, help="held-out prompts that are answered")
    parser.add_argument("--max-new-tokens", type=int, default=128, help="longest answer")


def run(arguments: argparse.Namespace, config: Config) -> None:
    """Evaluate, print the figures, write the report."""
    from dflash_trainer.evaluate.evaluate import EvaluationJob, evaluate

    job = EvaluationJob(
        checkpoint=arguments.checkpoint,
        report=arguments.json,
        prompts=0 if arguments.no_decode else arguments.prompts,
        max_new_tokens=arguments.max_new_tokens,
    )
    evaluate(job, config)
