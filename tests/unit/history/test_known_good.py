"""Known-good runs and prune: a rollback target always exists, and nothing in use is removed."""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
import subprocess
import time

import pytest
from boxes import Box, until
from dflash_ops.core.errors import OpsError
from dflash_ops.environment import inspection
from dflash_ops.history import known_good, prune
from dflash_ops.operations import stop
from dflash_ops.run import metrics, runs
from dflash_ops.run.trainer_command import Selection

pytestmark = pytest.mark.skipif(not shutil.which("tmux"), reason="tmux is not installed")


def trained(box: Box, *overrides: str, **more: object) -> runs.Run:
    """Train a run to its last step."""
    run = box.launch("optimizer.max_steps=12", "test.pause=0", *overrides, resume="never", **more)
    until(lambda: (run.folder / "exit.json").exists())
    return run


def promote(box: Box, run: runs.Run) -> None:
    known_good.promote(box.layout, known_good.entry_of(box.layout, run, by="me"))


def test_promoted_run_is_the_latest(box: Box) -> None:
    first, second = trained(box), trained(box)
    promote(box, first)
    promote(box, second)
    assert known_good.promoted(box.layout, second.run_id)
    entry = known_good.latest(box.layout)
    assert entry is not None
    assert (entry["env_id"], entry["release_id"], entry["config_file"]) == ("e1", "r1", "demo.toml")
    assert entry["speed"]["tok_s"] == 1000.0


@pytest.mark.parametrize(
    ("overrides", "more", "text"),
    [
        (["test.how=exit3"], {}, "cannot be promoted"),
        ([], {"expected_tok_s": 9000.0}, "reached 1000 tok/s; 7200 are required"),
    ],
)
def test_failed_or_slow_run_is_not_promoted(
    box: Box, overrides: list[str], more: dict[str, float], text: str
) -> None:
    run = trained(box, *overrides, **more)
    with pytest.raises(OpsError, match=text):
        promote(box, run)


def test_rollback_selects_the_last_known_good_run_and_marks_the_replaced_one(box: Box) -> None:
    good, bad = trained(box), trained(box, "optimizer.lr=9")
    promote(box, good)
    plan = known_good.plan_rollback(box.layout)
    assert plan["entry"]["run_id"] == good.run_id
    assert plan["bad"] == [bad.run_id]
    known_good.mark(box.layout, bad=plan["bad"])
    with pytest.raises(OpsError, match="marked bad"):
        promote(box, bad)


def test_second_rollback_selects_the_entry_before_or_nothing(box: Box) -> None:
    oldest, newer = trained(box), trained(box)
    promote(box, oldest)
    promote(box, newer)
    first = known_good.plan_rollback(box.layout)
    assert first["entry"]["run_id"] == oldest.run_id
    known_good.mark(box.layout, bad=first["bad"])
    again = box.launch(origin={"rollback_to": oldest.run_id})
    until(lambda: metrics.read_metrics(again.metrics))
    second = known_good.plan_rollback(box.layout)
    assert second["entry"] is None
    assert "already running" in second["reason"]
    stop.stop(box.layout, again, report=lambda _line: None)
    assert known_good.plan_rollback(box.layout)["entry"]["run_id"] == oldest.run_id


def test_promoted_rollback_run_is_the_known_good_one(box: Box) -> None:
    oldest = trained(box)
    promote(box, oldest)
    again = trained(box, origin={"rollback_to": oldest.run_id})
    promote(box, again)
    plan = known_good.plan_rollback(box.layout)
    assert plan["entry"]["run_id"] == oldest.run_id
    assert again.run_id in plan["bad"]
    assert oldest.run_id not in plan["bad"]


def test_bad_run_is_only_selected_by_id(box: Box) -> None:
    good, bad = trained(box), trained(box)
    promote(box, good)
    promote(box, bad)
    known_good.mark(box.layout, bad=[bad.run_id])
    assert known_good.plan_rollback(box.layout)["entry"]["run_id"] == good.run_id
    assert known_good.plan_rollback(box.layout, bad.run_id)["entry"]["run_id"] == bad.run_id


def test_rollback_without_a_known_good_run_is_rejected(box: Box) -> None:
    trained(box)
    with pytest.raises(OpsError, match="no known-good run"):
        known_good.plan_rollback(box.layout)


def test_damaged_record_is_an_error(box: Box) -> None:
    box.layout.known_good.write_text("{")
    with pytest.raises(OpsError, match="is not valid JSON"):
        known_good.read(box.layout)


def test_prune_keeps_current_and_known_good_runs_and_their_environments(box: Box) -> None:
    good = trained(box)
    promote(box, good)
    gone = trained(box)
    for name in ("old-env", "e2"):
        box.add_environment(name)
    for folder, name in ((box.layout.envs / "old-env", "env.json"), (box.layout.envs / "e1", "env.json")):
        os.utime(folder / name, (1, 1))
        os.utime(folder, (1, 1))
    running = box.launch(resume="never")
    until(lambda: metrics.read_metrics(running.metrics))
    plan = prune.plan(box.layout, keep_runs=1)
    removed = {path.name for path, _ in plan.remove}
    assert removed == {gone.run_id, "old-env"}
    prune.apply(plan)
    assert not box.layout.run(gone.run_id).exists()
    assert box.layout.env("e1").exists()
    assert box.layout.run(good.run_id).exists()
    assert runs.current(box.layout) == running
    assert prune.plan(box.layout, keep_runs=1).remove == ()


def test_environments_of_kept_runs_stay_intact(box: Box) -> None:
    for name in ("of-good", "of-gone", "of-kept", "of-live", "not-launched"):
        box.add_environment(name)
        time.sleep(0.01)  # the newest is found by its modification time

    def on(env_id: str, *overrides: str) -> dict[str, Selection]:
        return {"selection": dataclasses.replace(box.select(*overrides), env_id=env_id)}

    short = ("optimizer.max_steps=12", "test.pause=0")
    good, gone, _kept = (trained(box, **on(name, *short)) for name in ("of-good", "of-gone", "of-kept"))
    promote(box, good)
    live = box.launch(resume="never", **on("of-live"))
    until(lambda: metrics.read_metrics(live.metrics))
    plan = prune.plan(box.layout, keep_runs=2)
    assert {path.name for path, _ in plan.remove} == {gone.run_id, "of-gone", "e1"}
    prune.apply(plan)
    stay = {path.name for path in box.layout.envs.iterdir()}
    assert stay == {"of-good", "of-kept", "of-live", "not-launched"}
    assert [inspection.find_drift(box.layout, name, full=True) for name in sorted(stay)] == [[]] * 4


def test_source_of_a_resumed_run_is_kept(box: Box) -> None:
    first = box.launch("test.how=kill9", "checkpoint.every_steps=1")
    until(lambda: (first.folder / "exit.json").exists())
    second = box.launch("checkpoint.every_steps=1")
    until(lambda: metrics.read_metrics(second.metrics))
    assert prune.kept_runs(box.layout, 1)[first.run_id] == "a kept run resumed from its checkpoint"


def test_recent_half_built_folder_is_kept(box: Box) -> None:
    half = box.layout.envs / ".e9.building"
    half.mkdir(parents=True)
    assert prune.leftovers(box.layout) == []
    os.utime(half, (1, 1))
    assert prune.leftovers(box.layout) == [half]


def test_environment_in_use_is_kept(box: Box) -> None:
    replaced = box.layout.envs / ".replaced-e1-1"
    complete = box.layout.envs / "e5"
    box.add_environment("e5")
    users = []
    for env in (replaced, complete):
        (env / "bin").mkdir(parents=True, exist_ok=True)
        shutil.copy("/bin/sleep", env / "bin/sleep")
        users.append(subprocess.Popen([env / "bin/sleep", "600"]))
        for path in (env, *env.glob("env.json")):
            os.utime(path, (1, 1))
    box.add_environment("e6")
    try:
        found = prune.plan(box.layout, keep_runs=1)
        assert (complete, "a process uses it") in found.keep
        assert not {replaced, complete} & {path for path, _ in found.remove}
    finally:
        for user in users:
            user.kill()
            user.wait()
    assert {replaced, complete} <= {path for path, _ in prune.plan(box.layout, keep_runs=1).remove}


def test_prune_keeps_at_least_one(box: Box) -> None:
    with pytest.raises(OpsError, match="prune_keep_runs is 0"):
        prune.plan(box.layout, keep_runs=0)


def test_read_only_folder_is_removed(box: Box) -> None:
    folder = box.layout.releases / "r0"
    folder.mkdir(parents=True)
    (folder / "release.json").write_text(json.dumps({}))
    folder.chmod(0o500)
    prune.apply(prune.Plan(remove=((folder, "test"),), keep=()))
    assert not folder.exists()
