"""Secrets of a box in one file with mode 0600, read by start_training.sh; names may be shown, values never."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ..core import files
from ..core.errors import OpsError
from ..core.paths import Layout
from .trainer_command import VARIABLE_NAME


def path(layout: Layout) -> Path:
    """Return the file of the secrets."""
    return layout.root / "secrets.json"


def read(layout: Layout) -> dict[str, str]:
    """Return the secrets by name; empty without a file."""
    value = files.read_json(path(layout))
    return {str(name): str(secret) for name, secret in value.items()} if isinstance(value, dict) else {}


def write(layout: Layout, secrets: Mapping[str, str], *, check_mode: bool = False) -> bool:
    """Write exactly `secrets`, or remove the file when there are none; return whether that is a change.

    Raises:
        OpsError: a name is not a valid variable name.
    """
    for name in secrets:
        if not VARIABLE_NAME.fullmatch(name):
            raise OpsError(
                f"training_run_secrets has the name {name!r}, which is not a variable name.",
                remedy="use letters, digits and _",
            )
    file = path(layout)
    same = read(layout) == dict(secrets) and (not file.exists() or file.stat().st_mode & 0o777 == 0o600)
    if not same and not check_mode:
        if secrets:
            files.write_text(file, json.dumps(dict(secrets)), mode=0o600)
        else:
            file.unlink(missing_ok=True)
    return not same


def missing(config: Mapping[str, Any], names: Sequence[str]) -> list[str]:
    """Return a sentence with the remedy for each secret that the configuration needs and `names` lacks."""
    have, problems = set(names), []
    logging, checkpoint = dict(config.get("logging") or {}), dict(config.get("checkpoint") or {})
    if logging.get("wandb") == "online" and "WANDB_API_KEY" not in have:
        problems.append(
            "logging.wandb is online and training_run_secrets has no WANDB_API_KEY; "
            "add it, or set logging.wandb=offline"
        )
    if checkpoint.get("s3_uri") and not {"AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"} <= have:
        problems.append(
            "checkpoint.s3_uri is set and training_run_secrets lacks AWS_ACCESS_KEY_ID or "
            "AWS_SECRET_ACCESS_KEY; add both, or empty checkpoint.s3_uri"
        )
    return problems
