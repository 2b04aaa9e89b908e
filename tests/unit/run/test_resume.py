"""Choice of the run to resume from, among runs that resumed from each other."""

from __future__ import annotations

from collections import Counter

import pytest
from dflash_ops.core import files
from dflash_ops.core.paths import Layout
from dflash_ops.run import resume, runs


def chain(layout: Layout, count: int) -> list[str]:
    """Create runs of one configuration; each resumed from the previous one and has a checkpoint."""
    names = [f"20260101T{number:06}Z-demo" for number in range(count)]
    for name, before in zip(names, ["", *names], strict=False):
        record = {"run_id": name, "resume_identity": "same", "resume_from": before}
        files.write_json(layout.run(name) / "run.json", record)
        step = layout.run(name) / "checkpoints/step-00000001"
        files.write_json(step / "index.json", {"step": 1, "files": {}})
    return names


def source(layout: Layout, **more: object) -> str | None:
    found = resume.find_source(layout, "same", **more)  # type: ignore[arg-type]
    return found.run_id if found else None


def test_descendants_of_a_bad_run_are_skipped_up_to_a_good_run(layout: Layout) -> None:
    names = chain(layout, 6)
    assert source(layout) == names[5]
    assert source(layout, bad=[names[2]]) == names[1]
    assert source(layout, bad=[names[2]], good=[names[4]]) == names[5]
    assert source(layout, bad=[names[2], names[5]], good=[names[4]]) == names[4]
    assert source(layout, bad=names[2:3], good=names[2:3]) == names[1]
    assert source(layout, bad=[names[0]]) is None


def test_descendants_of_a_pruned_bad_run_are_skipped(layout: Layout) -> None:
    names = chain(layout, 3)
    (layout.run(names[0]) / "run.json").unlink()
    assert source(layout, bad=[names[0]]) is None


def test_cycle_of_runs_ends_the_search(layout: Layout) -> None:
    names = chain(layout, 2)
    files.write_json(layout.run(names[0]) / "run.json", {"resume_identity": "same", "resume_from": names[1]})
    assert source(layout) == names[1]
    assert source(layout, bad=[names[0]]) is None


def test_each_record_is_read_once(
    layout: Layout, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = chain(layout, 200)
    reads: Counter[str] = Counter()
    load = runs.load_or_none

    def counted(layout: Layout, run_id: str) -> runs.Run | None:
        reads[run_id] += 1
        return load(layout, run_id)

    monkeypatch.setattr(runs, "load_or_none", counted)
    assert source(layout, bad=[names[0]]) is None
    assert reads == Counter(names)
