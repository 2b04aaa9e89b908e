"""Runs: their ids, their records, which one is current, and what happened before."""

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
    """One launch and all that is written about it.

    Args:
        run_id: UTC time + label.
        folder: its folder below `runs/`.
        record: run.json.
    """

    run_id: str
    folder: Path
    record: Mapping[str, Any]

    @property
    def log(self) -> Path:
        return self.folder / "train.log"

    @property
    def metrics(self) -> Path:
        return self.folder / "metrics.jsonl"

    @property
    def checkpoints(self) -> Path:
        return self.folder / "checkpoints"

    def read(self, name: str) -> dict[str, Any]:
        """Return a JSON object of the run folder; empty when it is absent or half written."""
        value = files.read_json(self.folder / name)
        return value if isinstance(value, dict) else {}


def normalise_label(label: str) -> str:
    """Turn what the operator typed into the one form used in folder, session and log names.

    Raises:
        OpsError: nothing usable is left.
    """
    text = re.sub(r"[^A-Za-z0-9_]+", "-", label).strip("-_")[:LABEL_LIMIT].strip("-_")
    if not text:
        raise OpsError(
            f"training_run_label is {label!r}, which holds no letter and no digit.",
            remedy="use a word such as demo or lr3e-4",
        )
    return text


def label_note(label: str) -> str:
    """Say what became of a label that could not be kept as it was typed; empty when it was."""
    used = normalise_label(label)
    if used == label:
        return ""
    cut = f", at most {LABEL_LIMIT} characters" if len(label) > LABEL_LIMIT else ""
    return f"the label {label!r} is written {used}{cut}"


def new_run_id(label: str, *, now: float, taken: Iterable[str]) -> str:
    """Return `20260131T120000Z-label`, with a number behind it when that one exists."""
    base = f"{time.strftime('%Y%m%dT%H%M%SZ', time.gmtime(now))}-{normalise_label(label)}"
    used = set(taken)
    names = (base if number == 1 else f"{base}-{number}" for number in range(1, len(used) + 2))
    return next(name for name in names if name not in used)


def run_ids(layout: Layout) -> list[str]:
    """Return the ids of all runs, oldest first; a folder without run.json never became a run."""
    if not layout.runs.is_dir():
        return []
    return sorted(path.name for path in layout.runs.iterdir() if (path / "run.json").is_file())


def load(layout: Layout, run_id: str) -> Run:
    """Return one run.

    Raises:
        OpsError: there is no such run.
    """
    folder = folder_of(layout, run_id)
    record = files.read_json(folder / "run.json") if run_id and "/" not in run_id else None
    if not isinstance(record, dict):
        known = truncate.join_items(run_ids(layout)[::-1], 5, separator=", ") or "none yet"
        raise OpsError(
            f"run is {run_id!r}, and {layout.runs} holds no such run.",
            remedy=f"choose one of: {known} (playbooks/runs.yml lists them)",
        )
    return Run(run_id=run_id, folder=folder, record=record)


def readable(layout: Layout, run_id: str) -> Run | None:
    """Return a run; None when its record is damaged, which must not stand in the way of the others."""
    try:
        return load(layout, run_id)
    except OpsError:
        return None


def current(layout: Layout) -> Run | None:
    """Return the run that `current` points at; None when nothing was launched or its folder is gone."""
    run_id = current_target(layout).name
    folder = folder_of(layout, run_id)
    record = files.read_json(folder / "run.json") if run_id else None
    return Run(run_id=run_id, folder=folder, record=record) if isinstance(record, dict) else None


def current_target(layout: Layout) -> Path:
    """Return where `current` points, whatever is there; an empty path when it points nowhere."""
    try:
        return layout.current.readlink()
    except OSError:
        return Path()


def folder_of(layout: Layout, run_id: str) -> Path:
    """Return a run's folder. The current run may lie in the `dflash_workspace` of an earlier day, and live there."""
    target = current_target(layout)
    if target.is_absolute() and target.name == run_id and not (layout.run(run_id) / "run.json").is_file():
        return target
    return layout.run(run_id)


def chosen(layout: Layout, run_id: str = "") -> Run | None:
    """Return the run the operator named, else the current one."""
    return load(layout, run_id) if run_id else current(layout)


def need(layout: Layout, run_id: str = "") -> Run:
    """Return the run the operator named, else the current one.

    Raises:
        OpsError: there is none.
    """
    run = chosen(layout, run_id)
    if run is None:
        raise OpsError(
            "no run is current on this box.", remedy="deploy.yml starts one; playbooks/runs.yml lists earlier ones"
        )
    return run


def set_current(layout: Layout, run_id: str) -> None:
    """Point `current` at a run in one rename."""
    files.replace_link(layout.current, layout.run(run_id))


def checkpoint_steps(run: Run) -> list[int]:
    """Return the steps of the complete checkpoints, lowest first."""
    return [item.step for item in checkpoints.complete(run.checkpoints)]


def session_of(run: Run) -> str:
    return str(run.record.get("session") or "dflash")


def speed_window(run: Run) -> int:
    """Return the steps over which a speed of this run counts; every screen shows the same number then."""
    return int(dict(run.record.get("expected") or {}).get("steps") or metrics.WINDOW)


def total_steps(run: Run) -> int | None:
    """Return the step at which the run ends by itself, in whatever phase it is; None before the trainer knows it."""
    state = run.read("state.json")
    return state.get("total_steps") or (state.get("total") if state.get("phase") == "training" else None) or None


def goes_on_from(run: Run) -> str:
    """Return `step 40 of RUN`, `RUN`, or nothing when it began anew."""
    source, step = str(run.record.get("resume_from") or ""), run.record.get("resume_step")
    return f"step {step} of {source}" if source and step is not None else source


def rolled_back_to(run: Run) -> str:
    """Return the run whose state `run` was launched again from by a rollback; nothing when it was none."""
    return str(dict(run.record.get("origin") or {}).get("rollback_to") or "")
