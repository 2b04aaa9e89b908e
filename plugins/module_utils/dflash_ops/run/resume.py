"""Choice of the run whose checkpoints a new run resumes from."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

from ..core.paths import Layout
from . import runs

SECTIONS = ("target", "drafter", "objective", "data", "optimizer")
NOT_IDENTITY = {
    "target": ("devices", "fast_path", "cuda_graphs"),
    "drafter": ("devices",),
    "objective": ("head_chunk",),
    "data": ("prefetch", "eval_path"),
    "optimizer": ("max_steps", "epochs"),
}
TRAINED_ON = ("dataset", "target")


def identity_of(config: Mapping[str, Any], *, trainer: Path) -> str:
    """Return a hash of the values that must match for a checkpoint to fit: model, data, objective; not the length.

    Args:
        config: the resolved configuration.
        trainer: the release's `trainer/`; the hash leaves this prefix out of paths, because it differs by release.
    """
    kept = {
        section: {
            key: value
            for key, value in sorted(dict(config.get(section) or {}).items())
            if key not in NOT_IDENTITY.get(section, ())
        }
        for section in SECTIONS
    }
    text = json.dumps(kept, sort_keys=True, default=str).replace(str(trainer), "")
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def find_source(
    layout: Layout, identity: str, *, bad: Collection[str] = (), good: Collection[str] = (), rollback_to: str = ""
) -> runs.Run | None:
    """Return the newest run of this identity that has a checkpoint; None when that run finished.

    Args:
        layout: the box.
        identity: `identity_of` the configuration to train.
        bad: runs that are skipped together with their descendants.
        good: runs whose own checkpoints are good, whatever they resumed from.
        rollback_to: target of a rollback; only its relaunches, itself and its ancestors are then considered.
    """
    history = History(layout, bad=bad, good=good)
    for run_id in _runs_of_state(history, rollback_to) if rollback_to else reversed(history.run_ids):
        run = history.run(run_id)
        if run is None or run.record.get("resume_identity") != identity or history.tainted(run_id):
            continue
        if run.read("state.json").get("phase") == "finished":
            return None
        if runs.checkpoint_steps(run):
            return run
    return None


class History:
    """The runs of a box and their ancestors; each record is read once."""

    def __init__(self, layout: Layout, *, bad: Collection[str] = (), good: Collection[str] = ()) -> None:
        self.run_ids = runs.run_ids(layout)
        self._layout = layout
        self._known = frozenset(self.run_ids)
        self._read: dict[str, runs.Run | None] = {}
        self._tainted = {**dict.fromkeys(good, False), **dict.fromkeys(bad, True)}

    def run(self, run_id: str) -> runs.Run | None:
        """Return a run; None when no run has this id or its record is damaged."""
        if run_id not in self._read:
            self._read[run_id] = runs.load_or_none(self._layout, run_id) if run_id in self._known else None
        return self._read[run_id]

    def lineage(self, run_id: str) -> Iterator[str]:
        """Yield the ids of a run and its ancestors, newest first; the oldest may have been pruned."""
        seen = set()
        while run_id and run_id not in seen:
            seen.add(run_id)
            yield run_id
            run = self.run(run_id)
            run_id = str(run.record.get("resume_from") or "") if run else ""

    def tainted(self, run_id: str) -> bool:
        """Return whether a run is bad or descends from a bad run without a good run between them."""
        passed = []
        for ancestor in self.lineage(run_id):
            if ancestor in self._tainted:
                break
            passed.append(ancestor)
        verdict = self._tainted.get(ancestor, False)
        self._tainted.update(dict.fromkeys(passed, verdict))
        return verdict


def _runs_of_state(history: History, run_id: str) -> list[str]:
    """Return the runs that a rollback to `run_id` launched, newest first, then the run itself and its ancestors."""
    others = [run for other in reversed(history.run_ids) if (run := history.run(other))]
    relaunched = [other.run_id for other in others if runs.rollback_target(other) == run_id]
    return [*relaunched, *(other for other in history.lineage(run_id) if history.run(other))]


def changed_inputs(layout: Layout, run: runs.Run) -> list[str]:
    """Return which of dataset and target differ in content from those of the run that this run resumed from."""
    earlier = runs.load_or_none(layout, str(run.record.get("resume_from") or ""))
    before, now = (dict(item.record.get("inputs") or {}) if item else {} for item in (earlier, run))
    pairs = {name: [dict(side.get(name) or {}).get("fingerprint") for side in (before, now)] for name in TRAINED_ON}
    return [name for name, pair in pairs.items() if all(pair) and pair[0] != pair[1]]


def finished_before(layout: Layout, run: runs.Run) -> str:
    """Return the id of the newest earlier run of the same identity if it finished; else an empty string."""
    identity = run.record.get("resume_identity")
    for run_id in reversed(runs.run_ids(layout)):
        other = runs.load_or_none(layout, run_id) if run_id != run.run_id else None
        if other is not None and other.record.get("resume_identity") == identity:
            return run_id if other.read("state.json").get("phase") == "finished" else ""
    return ""
