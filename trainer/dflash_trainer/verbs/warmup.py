"""The verb `warmup`: compile and tune everything a run will use, and say how much came from the cache."""

from __future__ import annotations

import argparse
from pathlib import Path

from dflash_trainer.config import Config

HELP = "compile and autotune every device and shape into a cache"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Where the cache is and where the report goes."""
    parser.add_argument("--cache-dir", type=Path, help="compile caches (inductor, triton, fla)")
    parser.add_argument("--report", type=Path, required=True, help="JSON report to write")


def run(arguments: argparse.Namespace, config: Config) -> None:
    """Warm everything and print where the report is."""
    from dflash_trainer.pipeline.threads import share_cores
    from dflash_trainer.warmup import run_warmup

    share_cores(sum(device == "cpu" for device in config.target.devices + config.drafter.devices))
    result = run_warmup(config, arguments.report.absolute(), say=lambda line: print(line, flush=True))
    print(f"warmup done in {result['seconds']:.1f} s, {result['misses']} cache misses: {arguments.report}", flush=True)
