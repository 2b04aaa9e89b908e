"""The verb `train`."""

from __future__ import annotations

import argparse
import os
import sys
import threading
from pathlib import Path

from dflash_trainer.config import Config

HELP = "train a drafter, or go on with a run"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Where the run lies and where it comes from."""
    parser.add_argument("--run-dir", type=Path, required=True, help="folder of the run; its checkpoints are resumed")
    parser.add_argument("--resume-from", type=Path, help="checkpoints folder of an earlier run, used when DIR has none")
    parser.add_argument("--cache-dir", type=Path, help="compile caches (inductor, triton, fla)")


def run(arguments: argparse.Namespace, config: Config) -> int:
    """Train; returns the exit code. Leaves even when a worker is stuck in a lost GPU."""
    print("phase imports: loading torch", flush=True)
    from dflash_trainer.train import TrainOptions, train

    resume = arguments.resume_from.absolute() if arguments.resume_from else None
    code = train(config, TrainOptions(arguments.run_dir.absolute(), resume))
    if any(not thread.daemon for thread in threading.enumerate() if thread is not threading.main_thread()):
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    return code
