"""Command line: select the command, load the configuration, return the exit code.

Only commands that compute import torch.
"""

from __future__ import annotations

import argparse
import importlib
import os
import signal
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from dflash_trainer.config.load import load_config
from dflash_trainer.errors import ConfigError, ExitCode, TrainerError

_INTERRUPTED = 128 + signal.SIGINT
COMMANDS = ("config", "train", "warmup", "prepare", "evaluate", "export", "bench")


def run(argv: Sequence[str]) -> int:
    """Run one command and return the exit code."""
    if not argv or argv[0] not in COMMANDS:
        return _usage(argv)
    command = importlib.import_module(f"dflash_trainer.commands.{argv[0]}")
    arguments = _parse(command, argv)
    set_cache_folders(getattr(arguments, "cache_dir", None))
    silence_progress_bars()
    try:
        config = load_config(arguments.config, arguments.set)
        return int(command.run(arguments, config) or ExitCode.FINISHED)
    except ConfigError as error:
        print(f"config error: {error}", file=sys.stderr, flush=True)
        return _record(error, arguments)
    except TrainerError as error:
        print(f"failed: {error.name}: {error}", file=sys.stderr, flush=True)
        return _record(error, arguments)
    except KeyboardInterrupt:
        print(f"{argv[0]}: interrupted", file=sys.stderr, flush=True)
        return _INTERRUPTED
    except Exception as error:
        return _record(_named(argv[0], error), arguments)


def set_cache_folders(folder: Path | None) -> None:
    """Set the allocator option and the compile cache folders below `folder`; call before importing torch."""
    os.environ.setdefault("PYTORCH_ALLOC_CONF", "expandable_segments:True")
    if folder is not None:
        base = folder.absolute()
        os.environ["TORCHINDUCTOR_CACHE_DIR"] = str(base / "inductor")
        os.environ["TRITON_CACHE_DIR"] = str(base / "triton")
        os.environ["FLA_CACHE_DIR"] = str(base / "fla")


def silence_progress_bars() -> None:
    """Disable the progress bars of libraries, which fill a log with redraws. TQDM_DISABLE=0 enables them."""
    os.environ.setdefault("TQDM_DISABLE", "1")


def _parse(command: Any, argv: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog=f"python -m dflash_trainer {argv[0]}", description=command.HELP)
    parser.add_argument("--config", type=Path, required=True, metavar="FILE", help="TOML file, or config.json of a run")
    parser.add_argument(
        "--set", action="append", default=[], metavar="section.key=value", help="change one value (repeatable)"
    )
    command.add_arguments(parser)
    return parser.parse_args(argv[1:])


def _usage(argv: Sequence[str]) -> int:
    help_requested = bool(argv) and argv[0] in ("-h", "--help")
    lines = ["usage: python -m dflash_trainer COMMAND --config FILE [--set section.key=value]...", ""]
    lines += [f"  {name:9} {_help(name)}" for name in COMMANDS]
    print("\n".join(lines), file=sys.stdout if help_requested else sys.stderr)
    return ExitCode.FINISHED if help_requested else ExitCode.CONFIG


def _help(name: str) -> str:
    try:
        return str(importlib.import_module(f"dflash_trainer.commands.{name}").HELP)
    except ModuleNotFoundError:
        return ""


def _named(command: str, error: Exception) -> TrainerError:
    """Print the traceback of an unexpected exception and return it as the TrainerError that a run would report."""
    from dflash_trainer.pipeline.failure import named_failure

    traceback.print_exc()
    named = named_failure(command, error)
    named.__cause__ = error
    print(f"failed: {named.name}: {named}", file=sys.stderr, flush=True)
    return named


def _record(error: TrainerError, arguments: argparse.Namespace) -> int:
    """Write failure.json for a failure before the run started, and return the exit code."""
    folder: Path | None = getattr(arguments, "run_dir", None)
    if folder is not None and folder.is_dir():
        from dflash_trainer.records.failure import write_failure

        write_failure(error, folder)
    return error.exit_code
