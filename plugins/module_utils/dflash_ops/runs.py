"""Runs: their ids, their records, which one is current, and what happened before."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import re
import time
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Any

from . import checkpoints, files, metrics
from .errors import OpsError
from .paths import Layout

LABEL_LIMIT = 40
RESUME_SECTIONS = ("target", "drafter", "objective", "data", "optimizer")
NOT_IDENTITY = {
    "target": ("devices", "fast_path", "cuda_graphs"),
    "drafter": ("devices",),
    "objective": ("head_chunk",),
    "data": ("prefetch", "eval_path"),
    "optimizer": ("max_steps", "epochs"),
}


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
        known = run_ids(layout)
        raise OpsError(
            f"run is {run_id!r}, and {layout.runs} holds no such run.",
            remedy=f"choose one of: {', '.join(known[-5:]) or 'none yet'} (playbooks/runs.yml lists them)",
        )
    return Run(run_id=run_id, folder=folder, record=record)


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


def resume_identity(config: Mapping[str, Any], *, trainer: Path) -> str:
    """Return a hash over what must be equal for a checkpoint to fit: model, data and objective, not the length.

    Args:
        config: the resolved configuration.
        trainer: the release's `trainer/`; paths below it are compared without it, as each release has its own.
    """
    kept = {
        section: {
            key: value
            for key, value in sorted(dict(config.get(section) or {}).items())
            if key not in NOT_IDENTITY.get(section, ())
        }
        for section in RESUME_SECTIONS
    }
    text = json.dumps(kept, sort_keys=True, default=str).replace(str(trainer), "")
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def resume_source(layout: Layout, identity: str, *, without: Collection[str] = ()) -> Run | None:
    """Return the newest run of this identity that holds a checkpoint; none when it came to its end by itself.

    Runs in `without`, and what went on from them, are passed over: their weights may be what was bad.
    """
    for run_id in reversed(run_ids(layout)):
        run = load(layout, run_id)
        if run.record.get("resume_identity") != identity or stems_from(layout, run, without):
            continue
        if run.read("state.json").get("phase") == "finished":
            return None
        if checkpoint_steps(run):
            return run
    return None


def finished_before(layout: Layout, run: Run) -> str:
    """Return the newest earlier run of the same identity when it came to its end by itself; else nothing."""
    for run_id in reversed(run_ids(layout)):
        other = load(layout, run_id)
        if run_id != run.run_id and other.record.get("resume_identity") == run.record.get("resume_identity"):
            return run_id if other.read("state.json").get("phase") == "finished" else ""
    return ""


def stems_from(layout: Layout, run: Run, those: Collection[str]) -> bool:
    """Tell whether a run is one of `those`, or went on from one of them, whatever lies between."""
    seen: set[str] = set()
    while run.run_id not in seen:
        if run.run_id in those:
            return True
        seen.add(run.run_id)
        source = str(run.record.get("resume_from") or "")
        if not source:
            return False
        if not layout.run(source).is_dir():
            return source in those
        run = load(layout, source)
    return False


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
