"""Which run's checkpoints a new run goes on from."""

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
        for section in SECTIONS
    }
    text = json.dumps(kept, sort_keys=True, default=str).replace(str(trainer), "")
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def source(
    layout: Layout, identity: str, *, bad: Collection[str] = (), proved: Collection[str] = (), back_to: str = ""
) -> runs.Run | None:
    """Return the newest run of this identity that holds a checkpoint; none when it came to its end by itself.

    Args:
        layout: the box.
        identity: `identity_of` the configuration to train.
        bad: runs that are passed over, with what went on from them.
        proved: runs whose own checkpoints are good, whatever they went on from.
        back_to: the run that a rollback goes back to; then only the runs of that state and what it came of count.
    """
    past = Past(layout, bad=bad, proved=proved)
    for run_id in _of_state(past, back_to) if back_to else reversed(past.run_ids):
        run = past.run(run_id)
        if run is None or run.record.get("resume_identity") != identity or past.tainted(run_id):
            continue
        if run.read("state.json").get("phase") == "finished":
            return None
        if runs.checkpoint_steps(run):
            return run
    return None


class Past:
    """The runs of a box and what each went on from; a record is read once, however many came of it."""

    def __init__(self, layout: Layout, *, bad: Collection[str] = (), proved: Collection[str] = ()) -> None:
        self.run_ids = runs.run_ids(layout)
        self._layout = layout
        self._known = frozenset(self.run_ids)
        self._read: dict[str, runs.Run | None] = {}
        self._tainted = {**dict.fromkeys(proved, False), **dict.fromkeys(bad, True)}

    def run(self, run_id: str) -> runs.Run | None:
        """Return a run; None when there is none of this id, or its record is damaged."""
        if run_id not in self._read:
            self._read[run_id] = runs.readable(self._layout, run_id) if run_id in self._known else None
        return self._read[run_id]

    def lineage(self, run_id: str) -> Iterator[str]:
        """Yield the id of a run, of the one that it went on from, and so on; the last one may be pruned already."""
        seen = set()
        while run_id and run_id not in seen:
            seen.add(run_id)
            yield run_id
            run = self.run(run_id)
            run_id = str(run.record.get("resume_from") or "") if run else ""

    def tainted(self, run_id: str) -> bool:
        """Tell whether a run is bad, or went on from a bad one without a proved one between them."""
        passed = []
        for one in self.lineage(run_id):
            if one in self._tainted:
                break
            passed.append(one)
        verdict = self._tainted.get(one, False)
        self._tainted.update(dict.fromkeys(passed, verdict))
        return verdict


def _of_state(past: Past, run_id: str) -> list[str]:
    """Return the runs that were rolled back to `run_id`, newest first, then itself, then what it went on from."""
    others = [run for other in reversed(past.run_ids) if (run := past.run(other))]
    again = [other.run_id for other in others if runs.rolled_back_to(other) == run_id]
    return [*again, *(other for other in past.lineage(run_id) if past.run(other))]


def other_inputs(layout: Layout, run: runs.Run) -> list[str]:
    """Return what a run trains on, dataset or target, that is not what the run it goes on from trained on."""
    earlier = runs.readable(layout, str(run.record.get("resume_from") or ""))
    before, now = (dict(one.record.get("inputs") or {}) if one else {} for one in (earlier, run))
    pairs = {name: [dict(side.get(name) or {}).get("fingerprint") for side in (before, now)] for name in TRAINED_ON}
    return [name for name, pair in pairs.items() if all(pair) and pair[0] != pair[1]]


def finished_before(layout: Layout, run: runs.Run) -> str:
    """Return the newest earlier run of the same identity when it came to its end by itself; else nothing."""
    identity = run.record.get("resume_identity")
    for run_id in reversed(runs.run_ids(layout)):
        other = runs.readable(layout, run_id) if run_id != run.run_id else None
        if other is not None and other.record.get("resume_identity") == identity:
            return run_id if other.read("state.json").get("phase") == "finished" else ""
    return ""
