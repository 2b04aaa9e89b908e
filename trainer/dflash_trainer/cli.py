"""The command line: which verb, which configuration, which exit code. torch is imported by the verbs that compute."""

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
VERBS = ("config", "train", "warmup", "prepare", "evaluate", "export", "bench")


def run(words: Sequence[str]) -> int:
    """Run one verb; returns the exit code."""
    if not words or words[0] not in VERBS:
        return _usage(words)
    verb = importlib.import_module(f"dflash_trainer.commands.{words[0]}")
    arguments = _parse(verb, words)
    set_cache_folders(getattr(arguments, "cache_dir", None))
    silence_progress_bars()
    try:
        config = load_config(arguments.config, arguments.set)
        return int(verb.run(arguments, config) or ExitCode.FINISHED)
    except ConfigError as error:
        print(f"config error: {error}", file=sys.stderr, flush=True)
        return _record(error, arguments)
    except TrainerError as error:
        print(f"failed: {error.name}: {error}", file=sys.stderr, flush=True)
        return _record(error, arguments)
    except KeyboardInterrupt:
        print(f"{words[0]}: interrupted", file=sys.stderr, flush=True)
        return _INTERRUPTED
    except Exception as error:
        return _record(_named(words[0], error), arguments)


def set_cache_folders(folder: Path | None) -> None:
    """Point every compile cache below `folder`; must come before torch is imported. The allocator's setting too."""
    os.environ.setdefault("PYTORCH_ALLOC_CONF", "expandable_segments:True")
    if folder is not None:
        base = folder.absolute()
        os.environ["TORCHINDUCTOR_CACHE_DIR"] = str(base / "inductor")
        os.environ["TRITON_CACHE_DIR"] = str(base / "triton")
        os.environ["FLA_CACHE_DIR"] = str(base / "fla")


def silence_progress_bars() -> None:
    """No bars of libraries (a GGUF file being read): in a log each redraw of a bar stays. TQDM_DISABLE=0 shows them."""
    os.environ.setdefault("TQDM_DISABLE", "1")


def _parse(verb: Any, words: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog=f"python -m dflash_trainer {words[0]}", description=verb.HELP)
    parser.add_argument("--config", type=Path, required=True, metavar="FILE", help="TOML file, or config.json of a run")
    parser.add_argument(
        "--set", action="append", default=[], metavar="section.key=value", help="change one value (repeatable)"
    )
    verb.add_arguments(parser)
    return parser.parse_args(words[1:])


def _usage(words: Sequence[str]) -> int:
    asked = bool(words) and words[0] in ("-h", "--help")
    lines = ["usage: python -m dflash_trainer VERB --config FILE [--set section.key=value]...", ""]
    lines += [f"  {verb:9} {_help(verb)}" for verb in VERBS]
    print("\n".join(lines), file=sys.stdout if asked else sys.stderr)
    return ExitCode.FINISHED if asked else ExitCode.CONFIG


def _help(verb: str) -> str:
    try:
        return str(importlib.import_module(f"dflash_trainer.commands.{verb}").HELP)
    except ModuleNotFoundError:
        return ""


def _named(verb: str, error: Exception) -> TrainerError:
    """What no verb named itself (a lost GPU, a full disk), with its traceback and the name that a run would give it."""
    from dflash_trainer.pipeline.failure import named_failure

    traceback.print_exc()
    named = named_failure(verb, error)
    named.__cause__ = error
    print(f"failed: {named.name}: {named}", file=sys.stderr, flush=True)
    return named


def _record(error: TrainerError, arguments: argparse.Namespace) -> int:
    """A failure before the run began is written where the run would have written it."""
    folder: Path | None = getattr(arguments, "run_dir", None)
    if folder is not None and folder.is_dir():
        from dflash_trainer.records.failure import write_failure

        write_failure(error, folder)
    return error.exit_code
