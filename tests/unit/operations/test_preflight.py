"""Preflight: every reason not to launch, all at once, before anything starts."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest
from boxes import Box, until
from dflash_ops.core.errors import OpsError
from dflash_ops.core.gpus import Gpu, Survey
from dflash_ops.core.paths import Layout
from dflash_ops.monitor import problems, status
from dflash_ops.operations import preflight
from dflash_ops.run import launch, metrics, runs, secrets_file
from dflash_ops.run.trainer_command import Selection, check_extra

pytestmark = pytest.mark.skipif(not shutil.which("tmux"), reason="tmux is not installed")


def names(found: preflight.Findings) -> list[str]:
    return [item["name"] for item in found.problems]


def h200(count: int, used: int = 4) -> Survey:
    rows = tuple(Gpu(index, f"GPU-{index}", "NVIDIA H200", "570", 143771, used, 0) for index in range(count))
    return Survey(state="ok", gpus=rows, device_files=count)


def test_empty_problems_and_a_record(box: Box) -> None:
    found = preflight.look(box.layout, box.select(), session="dflash")
    assert found.problems == []
    assert found.record["needs"]["gpus"] == 0
    assert found.record["packages"] == {"a": "1"}
    assert found.cache is not None
    assert found.cache.state == "cold"


def test_case_57_more_gpus_than_there_are_is_refused_before_anything_starts(box: Box) -> None:
    found = preflight.look(box.layout, box.select("test.gpus=8"), session="dflash", survey=h200(2))
    assert found.problems[0]["message"] .startswith("the configuration uses cuda:2 to cuda:7, which the")
    assert runs.run_ids(box.layout) == []


def test_held_gpu_is_named(box: Box) -> None:
    found = preflight.look(box.layout, box.select("test.gpus=2"), session="dflash", survey=h200(2, used=70000))
    assert names(found) == ["gpu-held", "gpu-held"]


def test_case_51_a_real_allocation_is_made_and_its_failure_named(box: Box) -> None:
    site = next((box.layout.env("e1") / "lib").glob("python3.*")) / "site-packages"
    (site / "torch.py").write_text("def ones(*a, **k):\n    raise RuntimeError('CUDA unknown error')\n")
    found = preflight.look(box.layout, box.select("test.gpus=2"), session="dflash", survey=h200(2))
    assert [item["message"].split(":")[0] for item in found.problems] == [
        "GPU 0 takes no allocation",
        "GPU 1 takes no allocation",
    ]
    if not Path("/dev/nvidia-uvm").exists():
        assert names(found) == ["uvm-missing", "uvm-missing"]


def test_case_64_wandb_online_without_a_key_is_refused_and_offline_is_not(box: Box) -> None:
    online = preflight.look(box.layout, box.select("logging.wandb=online"), session="dflash")
    assert names(online) == ["secret-missing"]
    assert "WANDB_API_KEY" in online.problems[0]["message"]
    for overrides, secrets in (["logging.wandb=offline"], {}), (["logging.wandb=online"], {"WANDB_API_KEY": "x"}):
        assert preflight.look(box.layout, box.select(*overrides), session="dflash", secrets=secrets).problems == []


def test_s3_without_credentials_is_refused(box: Box) -> None:
    found = preflight.look(box.layout, box.select("checkpoint.s3_uri=s3://b/p"), session="dflash")
    assert "AWS_ACCESS_KEY_ID" in found.problems[0]["message"]


def test_living_run_and_taken_session_are_told_together_with_the_rest(box: Box) -> None:
    box.launch(session="train")
    launch.server(box.layout)._call("new-session", "-d", "-s", "dflash", "--", "cat")
    found = preflight.look(
        box.layout, box.select("logging.wandb=online"), session="dflash", drift=["added: x (is in no lock)"]
    )
    assert names(found) == ["environment-drift", "run-lives", "session-taken", "secret-missing"]


@pytest.mark.skipif(os.geteuid() != 0, reason="mounting needs root")
def test_case_61_the_mount_of_the_checkpoints_is_the_one_looked_at(tmp_path: Path) -> None:
    small = tmp_path / "small"
    small.mkdir()
    if subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=8m", "none", str(small)], check=False, capture_output=True
    ).returncode:
        pytest.skip("this container may not mount")
    try:
        box = Box(tmp_path / "root")
        layout = Layout.of(tmp_path / "root", small)
        found = preflight.look(layout, box.select(), session="dflash")
        assert names(found) == ["disk-short"]
        assert f"on {small}" in found.problems[0]["message"]
        assert "free" in found.problems[0]["message"]
    finally:
        subprocess.run(["umount", str(small)], check=True)


def test_case_61_full_disk_is_told_and_the_last_checkpoint_kept(box: Box) -> None:
    run = box.launch("test.how=full", "test.pause=0")
    until(lambda: (run.folder / "exit.json").exists())
    told = status.snapshot(box.layout)
    assert [item["name"] for item in told["problems"]] == ["failed", "disk-full"]
    assert told["checkpoint"]["step"] == 5


def test_case_61_checkpoints_that_fail_are_told_until_one_is_written(box: Box) -> None:
    run = box.launch("optimizer.max_steps=400", "test.pause=0.2")
    until(lambda: runs.checkpoint_steps(run) == [5])
    rows = [{"step": step, "checkpoint_failures": int(step > 11)} for step in range(1, 15)]
    told = status.snapshot(box.layout)
    named = [item["name"] for item in problems.of_live_run(told, rows)]
    assert named == ["checkpoints-fail"]
    assert problems.of_live_run({**told, "checkpoint": {"step": 15}}, [*rows, {**rows[-1], "step": 15}]) == []
    assert problems.of_live_run(told, rows[:11]) == []


def test_case_60_damaged_checkpoint_is_told_and_the_complete_one_counts(box: Box) -> None:
    run = box.launch("test.how=kill9", "checkpoint.every_steps=1")
    until(lambda: (run.folder / "exit.json").exists())
    (run.checkpoints / "step-00000003" / "model.safetensors").write_text("w")
    told = status.snapshot(box.layout)
    assert told["checkpoint"]["step"] == 2
    damage = next(item for item in told["problems"] if item["name"] == "checkpoint-damaged")
    assert damage["message"] == "step-00000003: model.safetensors has 1 bytes, not 7"
    (run.checkpoints / "step-00000002" / "index.json").unlink()
    assert status.snapshot(box.layout)["checkpoint"]["step"] == 1
    again = box.launch("checkpoint.every_steps=1")
    assert again.record["resume_from"] == run.run_id


def test_missing_environment_release_and_config_are_named(box: Box) -> None:
    for selection, text in (
        (Selection("e9", "r1", "demo.toml"), "environment e9 is not complete"),
        (Selection("e1", "r9", "demo.toml"), "release r9 is not complete"),
        (Selection("e1", "r1", "nope.toml"), "dflash_config is 'nope.toml'"),
    ):
        with pytest.raises(OpsError, match=text):
            preflight.look(box.layout, selection, session="dflash")


def test_refused_configuration_names_the_key(box: Box) -> None:
    with pytest.raises(OpsError, match=r"config error: tset\.how = x: unknown key"):
        preflight.look(box.layout, box.select("tset.how=x"), session="dflash")


def test_secret_among_plain_variables_is_refused() -> None:
    with pytest.raises(OpsError, match="HF_TOKEN, which looks like a secret"):
        check_extra({"HF_TOKEN": "x"})


def test_secrets_file_follows_what_is_wanted(box: Box) -> None:
    assert secrets_file.place(box.layout, {"A": "1"})
    assert not secrets_file.place(box.layout, {"A": "1"})
    secrets_file.path_of(box.layout).chmod(0o644)
    assert secrets_file.place(box.layout, {"A": "1"})
    assert secrets_file.place(box.layout, {}, check_mode=True)
    assert secrets_file.path_of(box.layout).exists()
    assert secrets_file.place(box.layout, {})
    assert not secrets_file.path_of(box.layout).exists()


def test_status_shows_what_the_trainer_counts(box: Box) -> None:
    run = box.launch("test.recompiles=2", "test.skipped=1")
    until(lambda: metrics.read_metrics(run.metrics))
    told = status.snapshot(box.layout)
    assert (told["recompiles"], told["skipped_batches"]) == (2, 1)
    assert {"recompile-after-warmup", "nan-loss"} <= {item["name"] for item in told["problems"]}
