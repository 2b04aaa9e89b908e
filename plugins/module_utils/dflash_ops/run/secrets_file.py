"""Secrets of a box: one 0600 file, read by the launch wrapper; their names may be shown, their values never."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ..core import files
from ..core.errors import OpsError
from ..core.paths import Layout
from .trainer_command import VARIABLE_NAME


def path_of(layout: Layout) -> Path:
    return layout.root / "secrets.json"


def read(layout: Layout) -> dict[str, str]:
    """Return the secrets; empty when there are none."""
    value = files.read_json(path_of(layout))
    return {str(name): str(secret) for name, secret in value.items()} if isinstance(value, dict) else {}


def place(layout: Layout, secrets: Mapping[str, str], *, check_mode: bool = False) -> bool:
    """Make the file hold exactly `secrets`; return whether it changes. No secrets: no file.

    Raises:
        OpsError: a name that no environment accepts.
    """
    for name in secrets:
        if not VARIABLE_NAME.fullmatch(name):
            raise OpsError(f"training_run_secrets holds the name {name!r}.", remedy="use letters, digits and _")
    file = path_of(layout)
    same = read(layout) == dict(secrets) and (not file.exists() or file.stat().st_mode & 0o777 == 0o600)
    if not same and not check_mode:
        if secrets:
            files.write_text(file, json.dumps(dict(secrets)), mode=0o600)
        else:
            file.unlink(missing_ok=True)
    return not same


def missing(config: Mapping[str, Any], names: Sequence[str]) -> list[str]:
    """Say which secrets the configuration needs and does not have, with the remedy."""
    have, wanted = set(names), []
    logging, checkpoint = dict(config.get("logging") or {}), dict(config.get("checkpoint") or {})
    if logging.get("wandb") == "online" and "WANDB_API_KEY" not in have:
        wanted.append(
            "logging.wandb is online and training_run_secrets has no WANDB_API_KEY; "
            "add it, or set logging.wandb=offline"
        )
    if checkpoint.get("s3_uri") and not {"AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"} <= have:
        wanted.append(
            "checkpoint.s3_uri is set and training_run_secrets lacks AWS_ACCESS_KEY_ID or "
            "AWS_SECRET_ACCESS_KEY; add both, or empty checkpoint.s3_uri"
        )
    return wanted
