"""Preflight checks: all problems are reported together before a launch."""

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
from dflash_ops.run.trainer_command import Selection, check_environment

pytestmark = pytest.mark.skipif(not shutil.which("tmux"), reason="tmux is not installed")


def names(found: preflight.Findings) -> list[str]:
    return [item["name"] for item in found.problems]


def h200(count: int, used: int = 4) -> Survey:
    rows = tuple(Gpu(index, f"GPU-{index}", "NVIDIA H200", "570", 143771, used, 0) for index in range(count))
    return Survey(state="ok", gpus=rows, device_files=count)


def test_without_problems_the_record_is_complete(box: Box) -> None:
    found = preflight.check(box.layout, box.select(), session="dflash")
    assert found.problems == []
    assert found.record["needs"]["gpus"] == 0
    assert found.record["packages"] == {"a": "1"}
    assert found.cache is not None
    assert found.cache.state == "cold"


def test_missing_gpus_are_reported(box: Box) -> None:
    found = preflight.check(box.layout, box.select("test.gpus=8"), session="dflash", survey=h200(2))
    assert found.problems[0]["message"].startswith("the configuration uses cuda:2 to cuda:7, which the")
    assert runs.run_ids(box.layout) == []


def test_gpu_in_use_is_reported(box: Box) -> None:
    found = preflight.check(box.layout, box.select("test.gpus=2"), session="dflash", survey=h200(2, used=70000))
    assert names(found) == ["gpu-held", "gpu-held"]


def test_failed_allocation_is_reported(box: Box) -> None:
    site = next((box.layout.env("e1") / "lib").glob("python3.*")) / "site-packages"
    (site / "torch.py").write_text("def ones(*a, **k):\n    raise RuntimeError('CUDA unknown error')\n")
    found = preflight.check(box.layout, box.select("test.gpus=2"), session="dflash", survey=h200(2))
    assert [item["message"].split(":")[0] for item in found.problems] == [
        "GPU 0 fails an allocation",
        "GPU 1 fails an allocation",
    ]
    if not Path("/dev/nvidia-uvm").exists():
        assert names(found) == ["uvm-missing", "uvm-missing"]


def test_wandb_online_needs_a_key(box: Box) -> None:
    online = preflight.check(box.layout, box.select("logging.wandb=online"), session="dflash")
    assert names(online) == ["secret-missing"]
    assert "WANDB_API_KEY" in online.problems[0]["message"]
    for overrides, secrets in (["logging.wandb=offline"], {}), (["logging.wandb=online"], {"WANDB_API_KEY": "x"}):
        assert preflight.check(box.layout, box.select(*overrides), session="dflash", secrets=secrets).problems == []


def test_s3_needs_credentials(box: Box) -> None:
    found = preflight.check(box.layout, box.select("checkpoint.s3_uri=s3://b/p"), session="dflash")
    assert "AWS_ACCESS_KEY_ID" in found.problems[0]["message"]


def test_all_problems_are_reported_together(box: Box) -> None:
    box.launch(session="train")
    launch.tmux_server(box.layout)._call("new-session", "-d", "-s", "dflash", "--", "cat")
    found = preflight.check(
        box.layout, box.select("logging.wandb=online"), session="dflash", drift=["added: x (is not in the lockfile)"]
    )
    assert names(found) == ["environment-drift", "already-running", "session-taken", "secret-missing"]


@pytest.mark.skipif(os.geteuid() != 0, reason="mounting needs root")
def test_space_is_checked_on_the_mount_of_the_checkpoints(tmp_path: Path) -> None:
    small = tmp_path / "small"
    small.mkdir()
    if subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=8m", "none", str(small)], check=False, capture_output=True
    ).returncode:
        pytest.skip("this container may not mount")
    try:
        box = Box(tmp_path / "root")
        layout = Layout.of(tmp_path / "root", small)
        found = preflight.check(layout, box.select(), session="dflash")
        assert names(found) == ["disk-short"]
        assert f"on {small}" in found.problems[0]["message"]
        assert "free" in found.problems[0]["message"]
    finally:
        subprocess.run(["umount", str(small)], check=True)


def test_full_disk_is_reported_and_the_last_checkpoint_kept(box: Box) -> None:
    run = box.launch("test.how=full", "test.pause=0")
    until(lambda: (run.folder / "exit.json").exists())
    answer = status.snapshot(box.layout)
    assert [item["name"] for item in answer["problems"]] == ["failed", "disk-full"]
    assert answer["checkpoint"]["step"] == 5


def test_failing_checkpoints_are_reported_until_one_is_written(box: Box) -> None:
    run = box.launch("optimizer.max_steps=400", "test.pause=0.2")
    until(lambda: runs.checkpoint_steps(run) == [5])
    rows = [{"step": step, "checkpoint_failures": int(step > 11)} for step in range(1, 15)]
    answer = status.snapshot(box.layout)
    named = [item["name"] for item in problems.of_live_run(answer, rows)]
    assert named == ["checkpoints-fail"]
    assert problems.of_live_run({**answer, "checkpoint": {"step": 15}}, [*rows, {**rows[-1], "step": 15}]) == []
    assert problems.of_live_run(answer, rows[:11]) == []


def test_damaged_checkpoint_is_reported_and_not_resumed_from(box: Box) -> None:
    run = box.launch("test.how=kill9", "checkpoint.every_steps=1")
    until(lambda: (run.folder / "exit.json").exists())
    (run.checkpoints / "step-00000003" / "model.safetensors").write_text("w")
    answer = status.snapshot(box.layout)
    assert answer["checkpoint"]["step"] == 2
    damage = next(item for item in answer["problems"] if item["name"] == "checkpoint-damaged")
    assert damage["message"] == "step-00000003: model.safetensors has 1 bytes, not 7"
    (run.checkpoints / "step-00000002" / "index.json").unlink()
    assert status.snapshot(box.layout)["checkpoint"]["step"] == 1
    again = box.launch("checkpoint.every_steps=1")
    assert again.record["resume_from"] == run.run_id


def test_missing_environment_release_and_configuration_are_reported(box: Box) -> None:
    for selection, text in (
        (Selection("e9", "r1", "demo.toml"), "environment e9 is missing or incomplete"),
        (Selection("e1", "r9", "demo.toml"), "release r9 is missing or incomplete"),
        (Selection("e1", "r1", "nope.toml"), "dflash_config is 'nope.toml'"),
    ):
        with pytest.raises(OpsError, match=text):
            preflight.check(box.layout, selection, session="dflash")


def test_rejected_configuration_names_the_key(box: Box) -> None:
    with pytest.raises(OpsError, match=r"config error: tset\.how = x: unknown key"):
        preflight.check(box.layout, box.select("tset.how=x"), session="dflash")


def test_secret_among_plain_variables_is_rejected() -> None:
    with pytest.raises(OpsError, match="HF_TOKEN, which looks like a secret"):
        check_environment({"HF_TOKEN": "x"})


def test_secrets_file_has_exactly_the_given_secrets(box: Box) -> None:
    assert secrets_file.write(box.layout, {"A": "1"})
    assert not secrets_file.write(box.layout, {"A": "1"})
    secrets_file.path(box.layout).chmod(0o644)
    assert secrets_file.write(box.layout, {"A": "1"})
    assert secrets_file.write(box.layout, {}, check_mode=True)
    assert secrets_file.path(box.layout).exists()
    assert secrets_file.write(box.layout, {})
    assert not secrets_file.path(box.layout).exists()


def test_status_shows_the_counters_of_the_trainer(box: Box) -> None:
    run = box.launch("test.recompiles=2", "test.skipped=1")
    until(lambda: metrics.read_metrics(run.metrics))
    answer = status.snapshot(box.layout)
    assert (answer["recompiles"], answer["skipped_batches"]) == (2, 1)
    assert {"recompile-after-warmup", "nan-loss"} <= {item["name"] for item in answer["problems"]}
