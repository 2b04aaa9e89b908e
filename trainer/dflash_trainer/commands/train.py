"""The command `train`."""

from __future__ import annotations

import argparse
from pathlib import Path

from dflash_trainer.commands.arguments import existing_folder, folder_to_write
from dflash_trainer.config.requirements import check_target
from dflash_trainer.config.schema import Config
from dflash_trainer.errors import ExitCode
from dflash_trainer.records.phase import RunState
from dflash_trainer.training.stop_signals import StopSignals

HELP = "train a drafter, or resume a run"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the folders of the run, of an earlier run and of the compile cache."""
    parser.add_argument(
        "--run-dir", type=folder_to_write, required=True, help="folder of the run; its checkpoints are resumed"
    )
    parser.add_argument(
        "--resume-from", type=existing_folder, help="checkpoints folder of an earlier run, used when DIR has none"
    )
    parser.add_argument("--cache-dir", type=folder_to_write, help="compile caches (inductor, triton, fla)")


def run(arguments: argparse.Namespace, config: Config) -> int:
    """Train and return the exit code."""
    check_target(config)
    stop = StopSignals()
    stop.install()
    try:
        return _train(arguments, config, stop)
    except BaseException:
        if not stop.requested:
            raise
        return _stopped_early(arguments.run_dir, stop)


def _train(arguments: argparse.Namespace, config: Config, stop: StopSignals) -> int:
    print("phase imports: loading torch", flush=True)
    from dflash_trainer.training.train import TrainOptions, train

    return train(config, TrainOptions(arguments.run_dir, arguments.resume_from), stop)


def _stopped_early(folder: Path, stop: StopSignals) -> int:
    """Report a signal that arrived while libraries were loading, and record it in an existing run folder."""
    stop.ignore()
    RunState(folder if folder.is_dir() else None).enter("stopped", f"{stop.requested} before the first step")
    return ExitCode.FINISHED
