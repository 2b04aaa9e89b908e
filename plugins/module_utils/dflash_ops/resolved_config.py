"""Resolved configuration of a selection: computed once by the trainer, stored as `configs/<hash>.json`."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from . import release
from .core import files
from .core.errors import OpsError
from .core.paths import Layout
from .run import trainer_command
from .run.trainer_command import Selection

TIMEOUT = 60  # seconds
PARTS = ("config", "needs", "paths")  # of the trainer's answer


def resolve(layout: Layout, selection: Selection, *, store: bool = True) -> dict[str, Any]:
    """Return `{"config": ..., "needs": ..., "paths": ...}` as the trainer resolves the selection.

    A release is immutable, so the stored answer is used as long as the release's files are the recorded ones, no path
    of the configuration resolves differently, and the target's headers are the same. Otherwise the trainer runs.

    Args:
        layout: the box.
        selection: environment, release, configuration, overrides.
        store: keep the answer for the next call; False in check mode.

    Raises:
        OpsError: environment or release is missing, or the trainer refuses the configuration.
    """
    trainer_command.check_present(layout, selection)
    unchanged = not release.find_drift(layout, selection.release_id)
    file = stored_file(layout, selection)
    stored = files.read_json(file) if unchanged else None
    if isinstance(stored, dict) and is_valid(stored):
        return {part: stored[part] for part in PARTS}
    answer = _ask_trainer(layout, selection)
    complete = answer["needs"].get("checkpoint_bytes") is not None  # unknown while the target is not on the box
    if store and unchanged and complete:
        with contextlib.suppress(OSError):  # a full disk only costs the next call its time
            target = _target_stamp(answer["needs"])
            files.write_json(file, {"release_id": selection.release_id, **answer, "target_stamp": target})
    return answer


def stored_file(layout: Layout, selection: Selection) -> Path:
    """Return the file of the stored answer; its name is a hash of the release, environment and options."""
    record = files.read_json(layout.release(selection.release_id) / release.RECORD_NAME) or {}
    key = [
        str(trainer_command.trainer_folder(layout, selection.release_id)),
        record.get("tree_hash"),
        selection.env_id,
        selection.config,
        selection.overrides,
        selection.extra,
    ]
    return layout.configs / f"{hashlib.sha256(json.dumps(key).encode()).hexdigest()[:16]}.json"


def is_valid(stored: Mapping[str, Any]) -> bool:
    """Return whether a stored answer is complete and its files outside the release are unchanged."""
    if not all(isinstance(stored.get(part), dict) for part in PARTS):
        return False
    same_paths = all(os.path.realpath(path) == resolved for path, resolved in stored["paths"].items())
    return same_paths and _target_stamp(stored["needs"]) == stored.get("target_stamp")


def release_of(file: Path) -> str:
    """Return the release that a stored answer belongs to; empty when the file is damaged."""
    stored = files.read_json(file)
    return str(stored.get("release_id") or "") if isinstance(stored, dict) else ""


def _target_stamp(needs: Mapping[str, Any]) -> list[int] | None:
    """Return size and mtime (ns) of the file that the target's shape was read from; None without such a file."""
    path = Path(str(needs.get("target_path") or ""))
    try:
        status = (path / "config.json" if path.is_dir() else path).stat()
    except OSError:
        return None
    return [status.st_size, status.st_mtime_ns]


def _ask_trainer(layout: Layout, selection: Selection) -> dict[str, Any]:
    try:
        done = subprocess.run(
            trainer_command.command(layout, selection, "config", "--json"),
            env=trainer_command.environment(layout, selection),
            text=True,
            cwd=trainer_command.trainer_folder(layout, selection.release_id),
            capture_output=True,
            timeout=TIMEOUT,
            check=False,
            stdin=subprocess.DEVNULL,
            errors="replace",
        )
    except subprocess.TimeoutExpired as error:
        raise OpsError(
            f"The trainer did not resolve {selection.config} within {TIMEOUT} s.",
            remedy="check the box's load and its disk",
        ) from error
    if done.returncode != 0:
        raise OpsError(
            f"The trainer rejected dflash_config={selection.config}: {_last_line(done.stderr)}.",
            remedy="correct dflash_config or dflash_overrides",
        )
    try:
        value = json.loads(done.stdout)
        return {part: dict(value[part]) for part in PARTS}
    except (ValueError, KeyError, TypeError) as error:
        raise OpsError(
            f"The trainer's answer for {selection.config} is not a JSON object with {', '.join(PARTS)}: "
            f"{done.stdout[:200]!r}.",
            remedy="place a release that fits this version of the roles",
        ) from error


def _last_line(text: str) -> str:
    lines = [line for line in text.splitlines() if line.strip()]
    return lines[-1].strip() if lines else "no message"
