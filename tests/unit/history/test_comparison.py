"""Comparison: the most likely cause comes first, and no difference is omitted."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from dflash_controller import screens
from dflash_ops.core.errors import OpsError
from dflash_ops.core.paths import Layout
from dflash_ops.history import comparison
from dflash_ops.operations import compare_runs
from dflash_ops.run import runs

BASE: dict[str, Any] = {
    "gpus": ["NVIDIA H200"] * 8,
    "driver": "570.86",
    "hardware": "NVIDIA H200",
    "host": "box",
    "cache_id": "c1",
    "cache_state": "warm",
    "packages": {"torch": "2.11.0+cu128", "datasets": "4.0"},
    "release_id": "r1",
    "config": {"runtime": {"compile": True}, "optimizer": {"lr": 6e-4}},
    "inputs": {"dataset": {"fingerprint": "d"}, "weights": {"fingerprint": "w"}},
    "extra_environment": {},
}


@pytest.fixture
def box(tmp_path: Path) -> Layout:
    return Layout.of(tmp_path)


def run(layout: Layout, run_id: str, *, tok_s: float = 21500.0, **changes: Any) -> runs.Run:
    folder = layout.run(run_id)
    folder.mkdir(parents=True)
    record = {**BASE, "run_id": run_id, **changes}
    (folder / "run.json").write_text(json.dumps(record))
    (folder / "metrics.jsonl").write_text(
        "".join(json.dumps({"step": n, "tok_s": tok_s, "loss": 4.0}) + "\n" for n in range(20))
    )
    return runs.load(layout, run_id)


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"packages": {"torch": "2.11.0+cu130", "datasets": "4.0"}}, "packages: torch 2.11.0+cu128 -> 2.11.0+cu130"),
        ({"packages": {"torch": "2.11.0+cu128"}}, "packages: datasets removed (was 4.0)"),
        ({"packages": {**BASE["packages"], "sglang": "0.5"}}, "packages: sglang added (0.5)"),
        (
            {"config": {"runtime": {"compile": False}, "optimizer": {"lr": 6e-4}}},
            "config: runtime.compile True -> False",
        ),
        ({"cache_state": "cold"}, "cache: state at launch warm -> cold"),
        ({"driver": "580.1"}, "driver: driver 570.86 -> 580.1"),
        (
            {"inputs": {**BASE["inputs"], "dataset": {"fingerprint": "e"}}},
            "inputs: dataset d -> e",
        ),
        ({"extra_environment": {"NCCL_P2P_DISABLE": "1"}}, "variables: NCCL_P2P_DISABLE added (1)"),
    ],
)
def test_one_change_gives_one_difference(box: Layout, changes: dict[str, Any], text: str) -> None:
    found = comparison.compare(box, run(box, "a"), run(box, "b", tok_s=4300.0, **changes))
    assert [item["text"] for item in found["differences"]] == [text]
    assert found["speed"]["a"]["tok_s"] == 21500.0
    assert found["speed"]["b"]["tok_s"] == 4300.0


def test_most_likely_cause_comes_first(box: Layout) -> None:
    changed: dict[str, Any] = {
        "config": {"runtime": {"compile": False}, "optimizer": {"lr": 1.0}},
        "host": "other",
        "cache_state": "cold",
    }
    found = comparison.compare(box, run(box, "a"), run(box, "b", **changed))
    assert [item["what"] for item in found["differences"]] == [
        "state at launch",
        "runtime.compile",
        "host",
        "optimizer.lr",
    ]


def test_code_is_shown_as_a_diff(box: Layout) -> None:
    for release, text in (("r1", "x = 1\n"), ("r2", "x = 2\n")):
        folder = box.release(release) / "trainer"
        folder.mkdir(parents=True)
        (folder / "loss.py").write_text(text)
        (folder / "same.py").write_text("y = 1\n")
    found = comparison.compare(box, run(box, "a"), run(box, "b", release_id="r2"))
    assert found["code"]["files"] == ["loss.py"]
    assert "+x = 2" in found["code"]["diff"]


def test_equal_runs_have_no_differences(box: Layout) -> None:
    assert comparison.compare(box, run(box, "a"), run(box, "b"))["differences"] == []


def test_release_folder_in_a_path_is_ignored(box: Layout) -> None:
    pair = [
        run(box, name, trainer_folder=f"/r/{name}/trainer", config={"data": {"path": f"/r/{name}/trainer/data/demo"}})
        for name in ("a", "b")
    ]
    assert comparison.compare(box, *pair)["differences"] == []


@pytest.mark.parametrize(
    ("known", "text"),
    [
        ([], "no run exists on this box yet.*deploy.yml starts the first run"),
        (["r1"], r"r1 is the only run on this box.*Remedy: after the next .* with -e run_a=r1$"),
        (["r1", "r2"], r"run_a was not given.*-e run_a=r1 compares with the previous run \([^)]*\)$"),
    ],
)
def test_without_two_runs_the_error_names_the_next_command(box: Layout, known: list[str], text: str) -> None:
    for run_id in known:
        run(box, run_id)
        runs.set_current(box, run_id)
    with pytest.raises(OpsError) as error:
        compare_runs.compare_runs(box, "", "")
    assert re.search(text, str(error.value))


def ended(layout: Layout, run_id: str, *, rc: int, signal: int | None, tok_s: float, steps: int = 20) -> None:
    """Write the exit record and the metrics of a run."""
    folder = run(layout, run_id).folder
    (folder / "exit.json").write_text(json.dumps({"rc": rc, "signal": signal}))
    rows = [json.dumps({"step": step, "time": step, "tok_s": tok_s}) for step in range(1, steps + 1)]
    (folder / "metrics.jsonl").write_text("\n".join(rows) + "\n")
    runs.set_current(layout, run_id)


def test_promotion_is_only_suggested_for_a_run_that_qualifies(box: Layout) -> None:
    ended(box, "r1", rc=0, signal=None, tok_s=100)
    with pytest.raises(OpsError, match=r"Remedy: playbooks/promote\.yml records it as known-good; after the next"):
        compare_runs.compare_runs(box, "", "")
    ended(box, "r2", rc=137, signal=9, tok_s=100)
    with pytest.raises(OpsError) as error:
        compare_runs.compare_runs(box, "", "")
    assert "promote" not in str(error.value)


def test_state_of_each_run_follows_its_name(box: Layout) -> None:
    ended(box, "r1", rc=0, signal=None, tok_s=100)
    ended(box, "r2", rc=137, signal=9, tok_s=100)
    shown = screens.compare_screen(compare_runs.compare_runs(box, "r1", "r2"))
    assert shown[:2] == ["A r1 (finished)", "B r2 (killed)"]


@pytest.mark.parametrize(("steps", "slower"), [(20, True), (3, False)])
def test_run_that_ended_without_a_speed_is_not_slower(box: Layout, steps: int, slower: bool) -> None:
    ended(box, "r1", rc=0, signal=None, tok_s=100)
    ended(box, "r2", rc=137, signal=9, tok_s=10, steps=steps)
    problems = compare_runs.compare_runs(box, "r1", "r2")["problems"]
    assert [item["name"] for item in problems] == (["slower"] if slower else [])
    assert not [item for item in problems if "rollback" in item["remedy"]]  # nothing is known-good
