"""Launch, stop, prewarm and rollback from module arguments, in check mode and for real."""

from __future__ import annotations

import json
import os
import shutil
import signal
from pathlib import Path
from typing import Any

import pytest
from boxes import Box, until
from dflash_ops import inputs
from dflash_ops.core import files, jobs
from dflash_ops.core.errors import OpsError
from dflash_ops.history import known_good, run_history
from dflash_ops.monitor import status
from dflash_ops.operations import ensure_cache, ensure_run, ensure_stopped, health_check, rollback
from dflash_ops.run import launch, metrics, run_processes, runs
from module_arguments import cache_params, run_params

pytestmark = pytest.mark.skipif(not shutil.which("tmux"), reason="tmux is not installed")


def ensure(box: Box, *overrides: str, check_mode: bool = False, **more: Any) -> dict[str, Any]:
    return ensure_run.ensure(box.layout, run_params(*overrides, **more), check_mode=check_mode)


def test_launch_is_a_change_and_its_record_is_complete(box: Box) -> None:
    result = ensure(box)
    assert result["changed"] is result["launched"] is True
    record = runs.load(box.layout, result["run_id"]).record
    for key in (
        "label",
        "operator",
        "host",
        "gpus",
        "driver",
        "lock_sha256",
        "packages",
        "tree_hash",
        "config",
        "inputs",
        "cache_id",
        "cache_state",
        "command",
        "environment",
    ):
        assert key in record, key


def test_running_run_is_kept_and_differences_are_reported(box: Box) -> None:
    first = ensure(box)
    kept = ensure(box, if_running="keep")
    assert (kept["changed"], kept["run_id"], kept["differs"]) == (False, first["run_id"], [])
    other = ensure(box, "optimizer.lr=2", if_running="keep")
    assert other["changed"] is False
    assert other["differs"] == ["overrides is [], requested ['optimizer.lr=2']"]
    assert "relaunch.yml replaces it" in other["message"]


def test_running_run_blocks_a_launch(box: Box) -> None:
    first = ensure(box)
    with pytest.raises(OpsError, match=f"already-running: run {first['run_id']} is running"):
        ensure(box)


def test_finished_configuration_is_not_launched_again_by_default(box: Box) -> None:
    first = ensure(box, "optimizer.max_steps=2", "test.pause=0")
    run = runs.load(box.layout, first["run_id"])
    until(lambda: (run.folder / "exit.json").exists())
    same = ensure(box, "optimizer.max_steps=2", "test.pause=0", if_running="keep", repeat_finished=False)
    assert (same["changed"], same["run_id"]) == (False, first["run_id"])
    assert ensure(box, "optimizer.max_steps=3", if_running="keep", repeat_finished=False)["launched"]


def test_check_mode_launches_nothing(box: Box) -> None:
    assert ensure(box, check_mode=True, env_id="e9")["message"].startswith("would launch demo once")
    result = ensure(box, check_mode=True)
    assert (result["changed"], result["launched"]) == (True, False)
    assert runs.run_ids(box.layout) == []
    assert run_processes.running_processes(box.layout) == {}


def test_drift_is_reported_and_blocks_the_launch(box: Box) -> None:
    (next((box.layout.env("e1") / "lib").glob("python3.*")) / "site-packages" / "evil.pth").write_text("import os\n")
    (box.layout.release("r1") / "trainer/dflash_trainer/__init__.py").write_text("patched = True\n")
    with pytest.raises(OpsError) as refused:
        ensure(box)
    assert "environment-drift" in refused.value.message
    assert "-e python_env_heal=true" in refused.value.message
    assert "evil.pth" in refused.value.message
    assert "release-changed" in refused.value.message
    assert "-e trainer_release_heal=true" in refused.value.message
    assert runs.run_ids(box.layout) == []


def test_preflight_checks_run_before_the_stop(box: Box) -> None:
    running = runs.load(box.layout, ensure(box)["run_id"])
    params = run_params("optimizer.lr=2", allow_cold=False)
    result = ensure_run.check_before_stop(box.layout, params, check_mode=False)
    assert result["changed"] is False
    assert result["message"].startswith("All preflight checks passed.")
    (next((box.layout.env("e1") / "lib").glob("python3.*")) / "site-packages" / "evil.pth").write_text("import os\n")
    link = box.layout.root / "a file"
    link.write_text("mine")
    with pytest.raises(OpsError, match="training_run_script_link"):
        ensure_run.check_before_stop(box.layout, {**params, "script_link": str(link)}, check_mode=False)
    with pytest.raises(OpsError, match=r"Nothing was stopped or launched\.\nenvironment-drift: .*evil\.pth") as refused:
        ensure_run.check_before_stop(box.layout, params, check_mode=False)
    assert "already-running" not in refused.value.message
    assert run_processes.main_process(running) is not None
    assert runs.run_ids(box.layout) == [running.run_id]


def test_check_mode_after_a_stop_reports_the_launch(box: Box) -> None:
    running = runs.load(box.layout, ensure(box)["run_id"])
    assert ensure(box, check_mode=True, after_stop=True)["message"].startswith("would launch demo: ")
    with pytest.raises(OpsError, match="already-running"):
        ensure(box, check_mode=True)
    with pytest.raises(OpsError, match="already-running"):
        ensure(box, stopped=True)
    assert run_processes.main_process(running) is not None


def test_rollback_never_resumes_from_a_bad_run_or_its_descendants(box: Box) -> None:
    good, bad, of_bad = (killed(box) for _ in range(3))
    assert of_bad.record["resume_from"] == bad.run_id
    back = killed(box, mark_bad=[bad.run_id], origin={"rollback_to": good.run_id})
    assert back.record["resume_from"] == good.run_id
    assert killed(box).record["resume_from"] == back.run_id


def test_damaged_record_of_another_run_does_not_block_a_launch(box: Box) -> None:
    other, good, bad = (killed(box) for _ in range(3))
    (other.folder / "run.json").write_text("")
    back = killed(box, mark_bad=[bad.run_id], origin={"rollback_to": good.run_id})
    assert back.record["resume_from"] == good.run_id
    assert [row["run_id"] for row in run_history.listing(box.layout)] == [good.run_id, bad.run_id, back.run_id]


def test_rollback_resumes_from_the_known_good_run_itself(box: Box) -> None:
    bad, good, unproved = (killed(box) for _ in range(3))
    assert (good.record["resume_from"], unproved.record["resume_from"]) == (bad.run_id, good.run_id)
    known_good.promote(box.layout, {"run_id": good.run_id})
    known_good.mark(box.layout, bad=[bad.run_id])
    back = killed(box, origin={"rollback_to": good.run_id})
    assert back.record["resume_from"] == good.run_id
    assert killed(box).record["resume_from"] == back.run_id
    assert killed(box, origin={"rollback_to": good.run_id}).record["resume_from"] == back.run_id


def test_known_good_run_without_a_checkpoint_resumes_from_its_own_source_unless_bad(box: Box) -> None:
    oldest, bad, good = (killed(box) for _ in range(3))
    shutil.rmtree(good.checkpoints)
    known_good.promote(box.layout, {"run_id": good.run_id})
    assert killed(box, origin={"rollback_to": good.run_id}).record["resume_from"] == bad.run_id
    known_good.mark(box.layout, bad=[bad.run_id, runs.run_ids(box.layout)[-1]])
    assert killed(box, origin={"rollback_to": good.run_id}).record["resume_from"] == oldest.run_id


def killed(box: Box, **more: Any) -> runs.Run:
    """Return a killed run that has a checkpoint."""
    return kill_with_checkpoint(box, ensure(box, "checkpoint.every_steps=1", **more)["run_id"])


def kill_with_checkpoint(box: Box, run_id: str) -> runs.Run:
    """Kill a run once it has a checkpoint."""
    run = runs.load(box.layout, run_id)
    until(lambda: runs.checkpoint_steps(run))
    main = run_processes.main_process(run)
    assert main is not None
    os.kill(main.pid, signal.SIGKILL)
    until(lambda: (run.folder / "exit.json").exists())
    return run


def test_launch_after_a_finished_run_reports_the_start_from_scratch(box: Box) -> None:
    overrides = ("optimizer.max_steps=3", "test.pause=0")
    first = runs.load(box.layout, ensure(box, *overrides)["run_id"])
    until(lambda: (first.folder / "exit.json").exists())
    message = ensure(box, *overrides)["message"]
    assert f"starts from step 0: {first.run_id} already finished with this configuration" in message


def test_launch_reports_changed_inputs_of_the_resumed_run(box: Box, tmp_path: Path) -> None:
    data = tmp_path / "data"
    files.write_text(data / "rows", "one")
    overrides = ("checkpoint.every_steps=1", f"data.path={data}")
    inputs.record(box.layout, inputs.Input("dataset", data))
    first = kill_with_checkpoint(box, ensure(box, *overrides)["run_id"])
    again = ensure(box, *overrides)
    assert again["message"].endswith(f" of {first.run_id}")
    second = kill_with_checkpoint(box, again["run_id"])

    files.write_text(data / "rows", "two")
    with pytest.raises(OpsError, match=r"inputs-changed: dataset: .* sha256 "):
        ensure(box, *overrides)
    inputs.record(box.layout, inputs.Input("dataset", data))  # as training_inputs_accept=true does
    assert ensure(box, *overrides)["message"].endswith(f" of {second.run_id}, whose dataset had different content")


def test_rollback_with_a_failing_preflight_check_stops_nothing(box: Box) -> None:
    good = runs.load(box.layout, ensure(box, "optimizer.max_steps=12", "test.pause=0")["run_id"])
    until(lambda: (good.folder / "exit.json").exists())
    known_good.promote(box.layout, known_good.entry_of(box.layout, good, by="me"))
    ensure(box, "optimizer.lr=2")
    assert rollback.plan(box.layout, "", {})["target"]["run_id"] == good.run_id
    launch.tmux_server(box.layout)._call("new-session", "-d", "-s", "mine", "--", "cat")
    (good.folder / "run.json").write_text(json.dumps({**good.record, "session": "mine"}))
    known_good.promote(box.layout, known_good.entry_of(box.layout, runs.load(box.layout, good.run_id), by="me"))
    with pytest.raises(OpsError, match=r"Nothing was stopped or launched\.\nsession-taken: "):
        rollback.plan(box.layout, "", {})


def test_rollback_to_a_drifted_release_names_the_remedy(box: Box) -> None:
    good = runs.load(box.layout, ensure(box, "optimizer.max_steps=12", "test.pause=0")["run_id"])
    until(lambda: (good.folder / "exit.json").exists())
    (box.layout.release("r1") / "trainer/dflash_trainer/__init__.py").write_text("patched = True\n")
    with pytest.raises(OpsError, match=r"trainer_release_heal=true.*in a checkout of r1") as refused:
        rollback.plan(box.layout, good.run_id, {})
    assert "__init__.py" in refused.value.message
    assert "python_env_heal" not in str(refused.value)


def test_cold_cache_blocks_a_launch(box: Box) -> None:
    with pytest.raises(OpsError, match="cache-cold: the compile cache is cold"):
        ensure(box, allow_cold=False)


def test_launch_after_a_prewarm_records_a_warm_cache(box: Box) -> None:
    result = ensure_cache.ensure(box.layout, cache_params(), check_mode=False)
    until(lambda: jobs.poll(box.layout, result["job"]["job_id"]).state == "done")
    assert ensure_cache.ensure(box.layout, cache_params(), check_mode=False)["changed"] is False
    launched = ensure(box, allow_cold=False)
    record = runs.load(box.layout, launched["run_id"]).record
    assert (record["cache_state"], record["cache_id"]) == ("warm", result["cache_id"])


def test_cold_cache_is_not_prewarmed_while_a_run_is_running(box: Box) -> None:
    ensure(box)
    left = ensure_cache.ensure(box.layout, cache_params(if_running="skip"), check_mode=False)
    assert (left["changed"], "job" in left) == (False, False)
    assert "left unchanged while a run is running" in left["message"]
    with pytest.raises(OpsError, match="is running on the same devices"):
        ensure_cache.ensure(box.layout, cache_params(), check_mode=False)


def test_stop_is_idempotent_and_changes_nothing_in_check_mode(box: Box) -> None:
    ask = {"run": "", "timeout": 30.0, "immediately": False, "job": ""}
    assert ensure_stopped.ensure(box.layout, ask, check_mode=False)["message"] == "no run was ever launched on this box"
    run_id = ensure(box)["run_id"]
    run = runs.load(box.layout, run_id)
    until(lambda: metrics.read_metrics(run.metrics))
    assert ensure_stopped.ensure(box.layout, ask, check_mode=True)["changed"] is True
    assert run_processes.main_process(run) is not None
    job = ensure_stopped.ensure(box.layout, ask, check_mode=False)["job"]
    until(lambda: jobs.poll(box.layout, job["job_id"]).state == "done")
    again = ensure_stopped.ensure(box.layout, ask, check_mode=False)
    assert again["changed"] is False
    assert f"{run_id} is stopped" in again["message"]


def test_slow_run_is_reported_with_its_differences(box: Box) -> None:
    good = runs.load(box.layout, ensure(box, "optimizer.max_steps=12", "test.pause=0")["run_id"])
    until(lambda: (good.folder / "exit.json").exists())
    known_good.promote(box.layout, known_good.entry_of(box.layout, good, by="me"))
    slow = ensure(
        box, "test.tok_s=100", "test.pause=0", "optimizer.max_steps=500", expected_tok_s=1000.0, resume="never"
    )
    run = runs.load(box.layout, slow["run_id"])
    until(lambda: len(metrics.read_metrics(run.metrics)) > 40)
    judged = health_check.judge(
        box.layout,
        status.snapshot(box.layout),
        {"run": "", "speed_steps": 10, "tolerance": 0.8, "expected_tok_s": 0.0},
    )
    assert judged["judgement"]["state"] == "slow"
    differences = judged["comparison"]["differences"]
    assert any("test.tok_s added (100)" in item["text"] for item in differences)
