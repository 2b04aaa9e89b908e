"""Checkpoints: integrity, rotation, recovery and full disks."""

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
from tiny_runs import TinyRun, process_environment, step_results


def snapshot(step: int, *, best: bool = False) -> Snapshot:
    """Return a small state that depends on its step."""
    weights = {"w": torch.full((3, 5), float(step)), "norm.weight": torch.ones(5, dtype=torch.bfloat16)}
    return Snapshot(step, weights, {"w/master": weights["w"]}, {"position": {"step": step}, "config": {}}, best)


def write_checkpoints(folder: Path, *steps: int, keep: int = 10, best: int = 0) -> CheckpointStore:
    """Write checkpoints for `steps` and return their store."""
    store = CheckpointStore(folder)
    writer = CheckpointWriter(store, keep=keep, log=lambda line: None)
    for step in steps:
        writer.write(snapshot(step, best=step == best))
    writer.wait()
    return store


def truncate(file: Path) -> None:
    """Truncate a file to its first half."""
    data = file.read_bytes()
    file.write_bytes(data[: len(data) // 2])


def flip_bit(file: Path) -> None:
    """Flip the last bit of a file."""
    data = bytearray(file.read_bytes())
    data[-1] ^= 1
    file.write_bytes(bytes(data))


DAMAGES = {
    "weights removed": lambda folder: (folder / "model.safetensors").unlink(),
    "weights truncated": lambda folder: truncate(folder / "model.safetensors"),
    "optimizer flipped": lambda folder: flip_bit(folder / "optimizer.safetensors"),
    "index removed": lambda folder: (folder / "index.json").unlink(),
    "index truncated": lambda folder: truncate(folder / "index.json"),
    "index empty": lambda folder: (folder / "index.json").write_text('{"step": 3, "files": {}}'),
}


@pytest.mark.parametrize("name", DAMAGES)
def test_damaged_newest_checkpoint_is_quarantined_and_the_previous_one_used(tmp_path: Path, name: str) -> None:
    store = write_checkpoints(tmp_path, 1, 2, 3)
    DAMAGES[name](tmp_path / "step-00000003")
    log: list[str] = []
    found = store.newest(log.append)
    assert found is not None and found.step == 2
    assert len(log) == 1 and "step-00000003 is damaged" in log[0]
    assert (tmp_path / "damaged-step-00000003").is_dir()
    assert [folder.name for folder in store.folders()] == ["step-00000001", "step-00000002"]


def test_run_resumes_from_the_last_complete_checkpoint(
    tiny: TinyRun, capfd: pytest.CaptureFixture[str]
) -> None:
    tiny.train("uninterrupted", "optimizer.max_steps=14")
    tiny.train("run", "optimizer.max_steps=10", "optimizer.warmup_ratio=0.04")
    uninterrupted = step_results(tiny.rows("uninterrupted"))
    truncate(tiny.folder / "run/checkpoints/step-00000010/model.safetensors")
    capfd.readouterr()
    assert tiny.train("run", "optimizer.max_steps=14") == ExitCode.FINISHED
    out = capfd.readouterr().out
    assert "checkpoint step-00000010 is damaged (model.safetensors has" in out
    assert "resuming from" in out and "step-00000005" in out
    assert [row["step"] for row in tiny.rows("run")] == list(range(1, 15))
    assert [row[3] for row in step_results(tiny.rows("run"))] == [row[3] for row in uninterrupted]


def test_read_only_store_does_not_rename_damaged_checkpoints(tmp_path: Path) -> None:
    write_checkpoints(tmp_path, 1, 2)
    truncate(tmp_path / "step-00000002/model.safetensors")
    found = CheckpointStore(tmp_path, read_only=True).newest(lambda line: None)
    assert found is not None and found.step == 1
    assert (tmp_path / "step-00000002").is_dir()


def test_no_usable_checkpoint_gives_none(tmp_path: Path) -> None:
    write_checkpoints(tmp_path, 1)
    truncate(tmp_path / "step-00000001/index.json")
    assert CheckpointStore(tmp_path).newest(lambda line: None) is None
    assert CheckpointStore(tmp_path / "absent").newest(lambda line: None) is None


def test_rotation_keeps_the_newest_and_the_best(tmp_path: Path) -> None:
    store = write_checkpoints(tmp_path, 1, 2, 3, 4, 5, keep=2, best=2)
    assert [folder.name for folder in store.folders()] == ["step-00000002", "step-00000004", "step-00000005"]
    assert (tmp_path / "latest").resolve().name == "step-00000005"
    assert (tmp_path / "best").resolve().name == "step-00000002"


def test_staging_folder_of_a_killed_writer_is_ignored_and_removed(tmp_path: Path) -> None:
    store = write_checkpoints(tmp_path, 1)
    half = tmp_path / ".writing-step-00000002"
    shutil.copytree(tmp_path / "step-00000001", half)
    found = store.newest(lambda line: None)
    assert found is not None and found.step == 1
    write_checkpoints(tmp_path, 3)
    assert not half.exists()


def test_safetensors_library_reads_back_equal_tensors(tmp_path: Path) -> None:
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
    write_checkpoints(tmp_path, 1)
    folder = tmp_path / "step-00000001"
    index = json.loads((folder / "index.json").read_text())
    assert set(index["files"]) == {"model.safetensors", "optimizer.safetensors", "trainer.json"}
    assert all(record["size"] == (folder / name).stat().st_size for name, record in index["files"].items())
    assert damage(folder) is None


def test_disk_that_fills_up_keeps_the_last_good_checkpoint(tiny: TinyRun) -> None:
    """The disk has 4 MB, a checkpoint needs over 1 MB and all are kept, so the later ones fail."""
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
    failed = re.search(
        r"NOT written \(\[Errno 28\] No space left on device\); the last complete one is step-(\d+)", done.stdout
    )
    assert failed, done.stdout
    assert tiny.failure("run")["name"] == "checkpoint_failed"
    assert tiny.rows("run")[-1]["checkpoint_failures"] >= 1
    assert [row["step"] for row in tiny.rows("run")] == list(range(1, 61))
    found = CheckpointStore(kept).newest(lambda line: None)
    assert found is not None and found.step == int(failed.group(1))
    assert not list(kept.glob(".writing*"))


def test_too_small_disk_is_refused_before_weights_are_loaded(tiny: TinyRun) -> None:
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
