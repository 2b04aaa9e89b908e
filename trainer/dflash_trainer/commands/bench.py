"""The command `bench`: speed of one stage on its own."""

from __future__ import annotations

import argparse

from dflash_trainer.commands.arguments import at_least, file_to_write, folder_to_write
from dflash_trainer.config.schema import Config

HELP = "measure one stage: drafter, target or pipeline"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the stage and the output options."""
    parser.add_argument("stage", choices=("drafter", "target", "pipeline"))
    parser.add_argument("--json", type=file_to_write, help="file to write the figures to")
    parser.add_argument("--repeats", type=at_least(1), default=20, help="measured calls (pipeline: steps)")
    parser.add_argument("--cache-dir", type=folder_to_write, help="compile caches (inductor, triton, fla)")


def run(arguments: argparse.Namespace, config: Config) -> None:
    """Measure the stage, print and write the figures."""
    from dflash_trainer.bench.run import run_bench

    run_bench(arguments.stage, config, arguments.json, arguments.repeats)
