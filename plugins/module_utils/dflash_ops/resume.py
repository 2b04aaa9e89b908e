"""Which run's checkpoints a new run goes on from."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from . import runs
from .paths import Layout

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
    for run_id in _of_state(layout, back_to) if back_to else reversed(runs.run_ids(layout)):
        run = runs.readable(layout, run_id)
        if run is None or run.record.get("resume_identity") != identity or tainted(layout, run, bad, proved):
            continue
        if run.read("state.json").get("phase") == "finished":
            return None
        if runs.checkpoint_steps(run):
            return run
    return None


def tainted(layout: Layout, run: runs.Run, bad: Collection[str], proved: Collection[str] = ()) -> bool:
    """Tell whether a run is bad, or went on from a bad one without a proved one between them."""
    for run_id in lineage(layout, run):
        if run_id in bad or run_id in proved:
            return run_id in bad
    return False


def lineage(layout: Layout, run: runs.Run) -> list[str]:
    """Return the id of a run, of the one that it went on from, and so on; the last one may be pruned already."""
    known, found = runs.run_ids(layout), [run.run_id]
    while (before := str(run.record.get("resume_from") or "")) and before not in found:
        found.append(before)
        if before not in known:
            break
        earlier = runs.readable(layout, before)
        if earlier is None:
            break
        run = earlier
    return found


def _of_state(layout: Layout, run_id: str) -> list[str]:
    """Return the runs that were rolled back to `run_id`, newest first, then itself, then what it went on from."""
    known = runs.run_ids(layout)
    others = [run for other in reversed(known) if (run := runs.readable(layout, other))]
    again = [other.run_id for other in others if runs.rolled_back_to(other) == run_id]
    own = lineage(layout, runs.load(layout, run_id)) if run_id in known else []
    return [*again, *(other for other in own if other in known)]


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
