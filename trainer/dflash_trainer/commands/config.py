"""The command `config`: the resolved configuration and its requirements, without loading torch."""

from __future__ import annotations

import argparse
import json
import math

from dflash_trainer.config.load import resolved_paths
from dflash_trainer.config.requirements import run_requirements
from dflash_trainer.config.schema import Config

HELP = "show the resolved configuration and its requirements"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add --json."""
    parser.add_argument("--json", action="store_true", help="one JSON object on stdout")


def run(arguments: argparse.Namespace, config: Config) -> None:
    """Print the configuration and its requirements."""
    needs = run_requirements(config)
    if arguments.json:
        paths = resolved_paths(arguments.config, arguments.set)
        print(json.dumps({"ok": True, "config": config.to_dict(), "needs": needs, "paths": paths}))
        return
    for section, values in config.to_dict().items():
        print(f"[{section}]")
        for key, value in values.items():
            print(f"{key} = {json.dumps(value)}")
        print()
    size = needs["checkpoint_bytes"]
    workers = f"{needs['target_workers']} target and {needs['drafter_workers']} drafter workers"
    checkpoint = f"{math.ceil(size / 1e6)} MB per checkpoint" if size else "checkpoint size unknown without the weights"
    print(f"needs {workers}, {needs['gpus']} GPUs, {checkpoint}")
