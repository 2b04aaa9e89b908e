"""The verb `bench`: how fast a stage is by itself."""

from __future__ import annotations

import argparse

from dflash_trainer.commands.arguments import at_least, file_to_write, folder_to_write
from dflash_trainer.config.schema import Config

HELP = "measure a stage by itself: drafter, target or pipeline"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Which stage, and where the figures go."""
    parser.add_argument("stage", choices=("drafter", "target", "pipeline"))
    parser.add_argument("--json", type=file_to_write, help="file for the figures")
    parser.add_argument("--repeats", type=at_least(1), default=20, help="calls (pipeline: steps) that count")
    parser.add_argument("--cache-dir", type=folder_to_write, help="compile caches (inductor, triton, fla)")


def run(arguments: argparse.Namespace, config: Config) -> None:
    """Measure, print, write."""
    from dflash_trainer.bench.run import run_bench

    run_bench(arguments.stage, config, arguments.json, arguments.repeats)
