"""Checkpoints: whole or not used, rotated, found again; full disks."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest
import torch
from dflash_trainer.checkpoint import CheckpointStore, CheckpointWriter, Snapshot
from dflash_trainer.checkpoint.store import damage
from dflash_trainer.checkpoint.tensors import write_tensors
from dflash_trainer.errors import ExitCode
from safetensors.torch import load_file
from tiny_runs import TinyRun, process_environment, what_was_trained


def snapshot(step: int, *, best: bool = False) -> Snapshot:
    """A small state that differs with its step."""
    weights = {"w": torch.full((3, 5), float(step)), "norm.weight": torch.ones(5, dtype=torch.bfloat16)}
    return Snapshot(step, weights, {"w/master": weights["w"]}, {"position": {"step": step}, "config": {}}, best)


def written(folder: Path, *steps: int, keep: int = 10, best: int = 0) -> CheckpointStore:
    """A store with these checkpoints."""
    store = CheckpointStore(folder)
    writer = CheckpointWriter(store, keep=keep, log=lambda line: None)
    for step in steps:
        writer.write(snapshot(step, best=step == best))
    writer.wait()
    return store


def cut(file: Path) -> None:
    """Keep the first half of a file."""
    data = file.read_bytes()
    file.write_bytes(data[: len(data) // 2])


def flip(file: Path) -> None:
    """Change one byte, keeping the size."""
    data = bytearray(file.read_bytes())
    data[-1] ^= 1
    file.write_bytes(bytes(data))


DAMAGES = {
    "weights removed": lambda folder: (folder / "model.safetensors").unlink(),
    "weights cut": lambda folder: cut(folder / "model.safetensors"),
    "optimizer flipped": lambda folder: flip(folder / "optimizer.safetensors"),
    "index removed": lambda folder: (folder / "index.json").unlink(),
    "index cut": lambda folder: cut(folder / "index.json"),
    "index empty": lambda folder: (folder / "index.json").write_text('{"step": 3, "files": {}}'),
}


@pytest.mark.parametrize("name", DAMAGES)
def test_case_60_damaged_newest_is_put_aside_and_the_one_before_is_used(tmp_path: Path, name: str) -> None:
    store = written(tmp_path, 1, 2, 3)
    DAMAGES[name](tmp_path / "step-00000003")
    said: list[str] = []
    found = store.newest(said.append)
    assert found is not None and found.step == 2
    assert len(said) == 1 and "step-00000003 is damaged" in said[0]
    assert (tmp_path / "damaged-step-00000003").is_dir()
    assert [folder.name for folder in store.folders()] == ["step-00000001", "step-00000002"]


def test_case_60_a_run_goes_on_from_the_last_complete_checkpoint(
    tiny: TinyRun, capfd: pytest.CaptureFixture[str]
) -> None:
    tiny.train("whole", "optimizer.max_steps=14")
    tiny.train("run", "optimizer.max_steps=10", "optimizer.warmup_ratio=0.04")
    whole = what_was_trained(tiny.rows("whole"))
    cut(tiny.folder / "run/checkpoints/step-00000010/model.safetensors")
    capfd.readouterr()
    assert tiny.train("run", "optimizer.max_steps=14") == ExitCode.FINISHED
    out = capfd.readouterr().out
    assert "checkpoint step-00000010 is damaged (model.safetensors has" in out
    assert "resuming from" in out and "step-00000005" in out
    assert [row["step"] for row in tiny.rows("run")] == list(range(1, 15))
    assert [row[3] for row in what_was_trained(tiny.rows("run"))] == [row[3] for row in whole]


def test_read_only_store_leaves_damaged_checkpoints_in_place(tmp_path: Path) -> None:
    written(tmp_path, 1, 2)
    cut(tmp_path / "step-00000002/model.safetensors")
    found = CheckpointStore(tmp_path, read_only=True).newest(lambda line: None)
    assert found is not None and found.step == 1
    assert (tmp_path / "step-00000002").is_dir()


def test_nothing_usable_gives_none(tmp_path: Path) -> None:
    written(tmp_path, 1)
    cut(tmp_path / "step-00000001/index.json")
    assert CheckpointStore(tmp_path).newest(lambda line: None) is None
    assert CheckpointStore(tmp_path / "absent").newest(lambda line: None) is None


def test_rotation_keeps_the_newest_and_the_best(tmp_path: Path) -> None:
    store = written(tmp_path, 1, 2, 3, 4, 5, keep=2, best=2)
    assert [folder.name for folder in store.folders()] == ["step-00000002", "step-00000004", "step-00000005"]
    assert (tmp_path / "latest").resolve().name == "step-00000005"
    assert (tmp_path / "best").resolve().name == "step-00000002"


def test_leftovers_of_a_killed_writer_are_neither_used_nor_kept(tmp_path: Path) -> None:
    store = written(tmp_path, 1)
    half = tmp_path / ".writing-step-00000002"
    shutil.copytree(tmp_path / "step-00000001", half)
    found = store.newest(lambda line: None)
    assert found is not None and found.step == 1
    written(tmp_path, 3)
    assert not half.exists()


def test_tensor_files_read_back_equal_with_the_safetensors_library(tmp_path: Path) -> None:
    tensors = {
        "a": torch.randn(7, 3),
        "b": torch.randn(4).bfloat16(),
        "c": torch.tensor(3.0),
        "d": torch.arange(5),
        "e": torch.randn(6, 4).T,
        "empty": torch.zeros(0, 3),
    }
    write_tensors(tmp_path / "x.safetensors", tensors)
    found = load_file(tmp_path / "x.safetensors")
    assert found.keys() == tensors.keys()
    assert all(found[name].dtype == value.dtype and torch.equal(found[name], value) for name, value in tensors.items())


def test_index_has_size_and_hash_of_every_file(tmp_path: Path) -> None:
    written(tmp_path, 1)
    folder = tmp_path / "step-00000001"
    index = json.loads((folder / "index.json").read_text())
    assert set(index["files"]) == {"model.safetensors", "optimizer.safetensors", "trainer.json"}
    assert all(record["size"] == (folder / name).stat().st_size for name, record in index["files"].items())
    assert damage(folder) is None


def test_case_61_mount_that_fills_up_keeps_the_last_good_checkpoint(tiny: TinyRun) -> None:
    """4 MB of disk, over 1 MB a checkpoint, all to keep: the later ones cannot be written."""
    if subprocess.run(["unshare", "-rm", "true"], capture_output=True, check=False).returncode:
        pytest.skip("needs unshare -rm to mount a small disk")
    checkpoints = tiny.folder / "run/checkpoints"
    checkpoints.mkdir(parents=True)
    kept = tiny.folder / "kept"
    script = 'mount -t tmpfs -o size=4m none "$1" && shift && "$@"; rc=$?; cp -r "$CHECKPOINTS" "$KEPT"; exit $rc'
    command = ["unshare", "-rm", "sh", "-c", script, "sh", str(checkpoints)]
    command += tiny.command("run", "optimizer.max_steps=60", "checkpoint.keep=20")
    env = process_environment({"CHECKPOINTS": str(checkpoints), "KEPT": str(kept)})
    done = subprocess.run(command, capture_output=True, text=True, env=env, check=False)
    assert done.returncode == ExitCode.WORKER, done.stdout + done.stderr
    said = re.search(
        r"NOT written \(\[Errno 28\] No space left on device\); the last complete one is step-(\d+)", done.stdout
    )
    assert said, done.stdout
    assert tiny.failure("run")["name"] == "checkpoint_failed"
    assert tiny.rows("run")[-1]["checkpoint_failures"] >= 1
    assert [row["step"] for row in tiny.rows("run")] == list(range(1, 61))
    found = CheckpointStore(kept).newest(lambda line: None)
    assert found is not None and found.step == int(said.group(1))
    assert not list(kept.glob(".writing*"))


def test_case_61_too_small_mount_is_refused_before_anything_heavy(tiny: TinyRun) -> None:
    if subprocess.run(["unshare", "-rm", "true"], capture_output=True, check=False).returncode:
        pytest.skip("needs unshare -rm to mount a small disk")
    checkpoints = tiny.folder / "run/checkpoints"
    checkpoints.mkdir(parents=True)
    script = 'mount -t tmpfs -o size=1m none "$1" && shift && exec "$@"'
    command = ["unshare", "-rm", "sh", "-c", script, "sh", str(checkpoints), *tiny.command("run")]
    done = subprocess.run(command, capture_output=True, text=True, env=process_environment(), check=False)
    assert done.returncode == ExitCode.INPUT, done.stdout + done.stderr
    failure = tiny.failure("run")
    assert failure["name"] == "disk_full" and str(checkpoints) in failure["message"]
    assert "phase target_weights" not in done.stdout
