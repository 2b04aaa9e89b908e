"""The command `warmup`: compile and autotune every shape of a run and report the cache misses."""

from __future__ import annotations

import argparse

from dflash_trainer.commands.arguments import file_to_write, folder_to_write
from dflash_trainer.config.schema import Config

HELP = "compile and autotune every device and shape into a cache"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the cache folder and the report file."""
    parser.add_argument("--cache-dir", type=folder_to_write, help="compile caches (inductor, triton, fla)")
    parser.add_argument("--report", type=file_to_write, required=True, help="JSON report to write")


def run(arguments: argparse.Namespace, config: Config) -> None:
    """Warm up all shapes and print the path of the report."""
    from dflash_trainer.pipeline.threads import share_cores
    from dflash_trainer.pipeline.warmup import run_warmup

    share_cores(sum(device == "cpu" for device in config.target.devices + config.drafter.devices))
    result = run_warmup(config, arguments.report, log=lambda line: print(line, flush=True))
    print(f"warmup done in {result['seconds']:.1f} s, {result['misses']} cache misses: {arguments.report}", flush=True)
