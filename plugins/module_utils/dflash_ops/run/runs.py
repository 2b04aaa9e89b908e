"""Runs of a box: ids, records, and the current run."""

from __future__ import annotations

import dataclasses
import re
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from ..core import files, truncate
from ..core.errors import OpsError
from ..core.paths import Layout
from . import checkpoints, metrics

LABEL_LIMIT = 40


@dataclasses.dataclass(frozen=True)
class Run:
    """A launch and its files.

    Args:
        run_id: UTC time and label.
        folder: folder below `runs/`.
        record: contents of run.json.
    """

    run_id: str
    folder: Path
    record: Mapping[str, Any]

    @property
    def log(self) -> Path:
        """Return the path of train.log."""
        return self.folder / "train.log"

    @property
    def metrics(self) -> Path:
        """Return the path of metrics.jsonl."""
        return self.folder / "metrics.jsonl"

    @property
    def checkpoints(self) -> Path:
        """Return the folder of the checkpoints."""
        return self.folder / "checkpoints"

    def read(self, name: str) -> dict[str, Any]:
        """Return a JSON object of the run's folder; empty when the file is absent or half written."""
        value = files.read_json(self.folder / name)
        return value if isinstance(value, dict) else {}


def normalise_label(label: str) -> str:
    """Return the label in the form that folder, session and log names use.

    Raises:
        OpsError: the label has no letter and no digit.
    """
    text = re.sub(r"[^A-Za-z0-9_]+", "-", label).strip("-_")[:LABEL_LIMIT].strip("-_")
    if not text:
        raise OpsError(
            f"training_run_label is {label!r}, which has no letter and no digit.",
            remedy="use a label such as demo or lr3e-4",
        )
    return text


def label_note(label: str) -> str:
    """Return a note about a label that was changed by `normalise_label`; empty when it was not changed."""
    used = normalise_label(label)
    if used == label:
        return ""
    cut = f", at most {LABEL_LIMIT} characters" if len(label) > LABEL_LIMIT else ""
    return f"the label {label!r} was changed to {used}{cut}"


def new_run_id(label: str, *, now: float, taken: Iterable[str]) -> str:
    """Return `20260131T120000Z-label`, followed by a number when that id is taken."""
    base = f"{time.strftime('%Y%m%dT%H%M%SZ', time.gmtime(now))}-{normalise_label(label)}"
    used = set(taken)
    names = (base if number == 1 else f"{base}-{number}" for number in range(1, len(used) + 2))
    return next(name for name in names if name not in used)


def run_ids(layout: Layout) -> list[str]:
    """Return the ids of all runs, oldest first; folders without run.json are ignored."""
    if not layout.runs.is_dir():
        return []
    return sorted(path.name for path in layout.runs.iterdir() if (path / "run.json").is_file())


def load(layout: Layout, run_id: str) -> Run:
    """Return the run `run_id`.

    Raises:
        OpsError: the run does not exist.
    """
    folder = folder_of(layout, run_id)
    record = files.read_json(folder / "run.json") if run_id and "/" not in run_id else None
    if not isinstance(record, dict):
        known = truncate.join_items(run_ids(layout)[::-1], 5, separator=", ") or "none yet"
        raise OpsError(
            f"run {run_id!r} does not exist in {layout.runs}.",
            remedy=f"choose one of: {known} (playbooks/runs.yml lists them)",
        )
    return Run(run_id=run_id, folder=folder, record=record)


def load_or_none(layout: Layout, run_id: str) -> Run | None:
    """Return a run; None when it does not exist or its record is damaged."""
    try:
        return load(layout, run_id)
    except OpsError:
        return None


def current(layout: Layout) -> Run | None:
    """Return the run that `current` points to; None when nothing was launched or its folder was removed."""
    run_id = current_target(layout).name
    folder = folder_of(layout, run_id)
    record = files.read_json(folder / "run.json") if run_id else None
    return Run(run_id=run_id, folder=folder, record=record) if isinstance(record, dict) else None


def current_target(layout: Layout) -> Path:
    """Return the target of the symlink `current`, which need not exist; an empty path without the symlink."""
    try:
        return layout.current.readlink()
    except OSError:
        return Path()


def folder_of(layout: Layout, run_id: str) -> Path:
    """Return a run's folder; that of the current run may be below an earlier value of `dflash_workspace`."""
    target = current_target(layout)
    if target.is_absolute() and target.name == run_id and not (layout.run(run_id) / "run.json").is_file():
        return target
    return layout.run(run_id)


def select(layout: Layout, run_id: str = "") -> Run | None:
    """Return the named run, else the current run."""
    return load(layout, run_id) if run_id else current(layout)


def require(layout: Layout, run_id: str = "") -> Run:
    """Return the named run, else the current run.

    Raises:
        OpsError: the run does not exist, or no run is current.
    """
    run = select(layout, run_id)
    if run is None:
        raise OpsError(
            "no run is current on this box.", remedy="deploy.yml starts a run; playbooks/runs.yml lists earlier runs"
        )
    return run


def set_current(layout: Layout, run_id: str) -> None:
    """Point `current` to a run in one rename."""
    files.replace_link(layout.current, layout.run(run_id))


def checkpoint_steps(run: Run) -> list[int]:
    """Return the steps of the complete checkpoints, lowest first."""
    return [item.step for item in checkpoints.complete(run.checkpoints)]


def session_of(run: Run) -> str:
    """Return the tmux session name of a run."""
    return str(run.record.get("session") or "dflash")


def speed_window(run: Run) -> int:
    """Return the number of steps over which the speed of this run is measured."""
    return int(dict(run.record.get("expected") or {}).get("steps") or metrics.WINDOW)


def total_steps(run: Run) -> int | None:
    """Return the last step of the run; None until the trainer has computed it."""
    state = run.read("state.json")
    return state.get("total_steps") or (state.get("total") if state.get("phase") == "training" else None) or None


def resumed_from(run: Run) -> str:
    """Return `step 40 of RUN` or `RUN`; empty when the run started from scratch."""
    source, step = str(run.record.get("resume_from") or ""), run.record.get("resume_step")
    return f"step {step} of {source}" if source and step is not None else source


def rollback_target(run: Run) -> str:
    """Return the id of the run that a rollback restored by launching `run`; empty for other launches."""
    return str(dict(run.record.get("origin") or {}).get("rollback_to") or "")
