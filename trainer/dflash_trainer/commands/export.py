"""The command `export`: write a drafter in the format that servers load."""

from __future__ import annotations

import argparse
from pathlib import Path

from dflash_trainer.commands.arguments import folder_to_write
from dflash_trainer.config.schema import Config

HELP = "write a checkpoint's drafter as config.json and model.safetensors, for servers"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of this command."""
    parser.add_argument(
        "--checkpoint", type=Path, required=True, help="a checkpoint, or a run's folder (its best, else its latest)"
    )
    parser.add_argument("--output", type=folder_to_write, required=True, help="folder to create")
    parser.add_argument("--dtype", choices=("bfloat16", "float32"), default="bfloat16", help="dtype of the tensors")


def run(arguments: argparse.Namespace, config: Config) -> None:
    """Export the drafter and print a summary."""
    from dflash_trainer.checkpoint.trained_drafter import find_trained
    from dflash_trainer.export import export_drafter

    trained = find_trained(arguments.checkpoint)
    done = export_drafter(config, trained, arguments.output, arguments.dtype)
    print(
        f"exported {trained.name}: {done.tensors} tensors, {done.parameters} parameters, {arguments.dtype}, "
        f"{done.bytes / 1e6:.1f} MB, verified: {done.folder}",
        flush=True,
    )
