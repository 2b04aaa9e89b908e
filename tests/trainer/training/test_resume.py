"""Exact resume after a stop by signal and after a kill at any step."""

from __future__ import annotations

import contextlib
import io
import re
import shutil
import signal
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from dflash_trainer.data.arrow import ArrowSamples
from dflash_trainer.errors import ExitCode
from dflash_trainer.training.stop_signals import StopSignals
from published_targets import published
from safetensors.torch import load_file, save_file
from tiny_runs import TinyRun, step_results, write_dataset


@pytest.fixture
def uninterrupted(tiny: TinyRun) -> list[Any]:
    """Train an uninterrupted run of 40 steps and return its rows."""
    assert tiny.train("uninterrupted") == ExitCode.FINISHED
    return step_results(tiny.rows("uninterrupted"))


def interrupted_run(tiny: TinyRun, name: str, *overrides: str) -> None:
    """Leave a run as after a kill: its newest checkpoint is that of step 4."""
    assert tiny.train(name, "checkpoint.every_steps=4", *overrides) == ExitCode.FINISHED
    for folder in (tiny.folder / name / "checkpoints").glob("step-*"):
        if folder.name != "step-00000004":
            shutil.rmtree(folder)


def kill_at(tiny: TinyRun, name: str, step: int, *overrides: str) -> None:
    """Kill a run with SIGKILL soon after `step` and before it finishes."""
    process = tiny.start(name, *overrides)
    tiny.wait_for_step(name, step, process)
    process.kill()
    assert process.wait() == -signal.SIGKILL, tiny.log(name)
    assert tiny.rows(name)[-1]["step"] < 40


def test_two_runs_from_one_seed_are_equal_bit_for_bit(tiny: TinyRun, uninterrupted: list[Any]) -> None:
    tiny.train("second")
    assert step_results(tiny.rows("second")) == uninterrupted


def test_resume_after_kills_equals_an_uninterrupted_run_bit_for_bit(tiny: TinyRun, uninterrupted: list[Any]) -> None:
    """Kill at about steps 2, 5, 9 and 20 (before, just after and between checkpoints) and resume each time."""
    for step in (2, 5, 9, 20):
        kill_at(tiny, "killed", step)
    assert tiny.train("killed") == ExitCode.FINISHED
    assert step_results(tiny.rows("killed")) == uninterrupted


@pytest.mark.parametrize(
    "workers",
    [
        ('target.devices=["cpu","cpu"]', 'drafter.devices=["cpu","cpu"]'),
        ('drafter.devices=["cpu","cpu"]', "optimizer.accumulate=2", "optimizer.kind=muon"),
        ("optimizer.state_dtype=bfloat16", "drafter.dtype=bfloat16", "optimizer.schedule=wsd"),
    ],
)
def test_resume_is_exact_with_several_workers_and_other_optimizers(tiny: TinyRun, workers: tuple[str, ...]) -> None:
    assert tiny.train("uninterrupted", *workers) == ExitCode.FINISHED
    kill_at(tiny, "killed", 6, *workers)
    assert tiny.train("killed", *workers) == ExitCode.FINISHED
    assert step_results(tiny.rows("killed")) == step_results(tiny.rows("uninterrupted"))


def test_each_sample_is_used_once_per_epoch(tiny: TinyRun) -> None:
    per_epoch = 24
    tiny.train("run", "optimizer.max_steps=0", "optimizer.epochs=3")
    seen = Counter(sample for row in tiny.rows("run") for sample in row["samples"])
    assert seen == dict.fromkeys(range(per_epoch), 3)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_signal_saves_a_checkpoint_exits_zero_and_the_run_resumes(
    tiny: TinyRun, uninterrupted: list[Any], number: signal.Signals
) -> None:
    process = tiny.start("stopped")
    tiny.wait_for_step("stopped", 2, process)
    process.send_signal(number)
    assert process.wait(300) == 0, tiny.log("stopped")
    assert tiny.state("stopped")["phase"] == "stopped"
    step = tiny.state("stopped")["step"]
    assert 2 <= step < 40
    latest = tiny.folder / "stopped/checkpoints/latest"
    assert latest.resolve().name == f"step-{step:08d}"
    assert tiny.train("stopped") == ExitCode.FINISHED
    assert step_results(tiny.rows("stopped")) == uninterrupted


@pytest.mark.parametrize(
    ("seen", "options"),
    [
        ("phase imports: loading torch", ()),
        ("phase dataset", ('target.path="random:smollm2-135m"', "drafter.mask_token_id=3")),
        ("warmup 1/", ("runtime.compile=true",)),
    ],
    ids=["imports", "loading", "compiling"],
)
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_signal_during_start_up_exits_zero(
    tiny: TinyRun, number: signal.Signals, seen: str, options: tuple[str, ...]
) -> None:
    """The compiler turns exceptions into its own failures; this must not happen to a signal."""
    (tiny.folder / "early").mkdir()
    process = tiny.start("early", *options)
    while seen not in tiny.log("early"):
        assert process.poll() is None, tiny.log("early")
    time.sleep(0.3)
    process.send_signal(number)
    assert process.wait(300) == 0, tiny.log("early")
    assert tiny.state("early")["phase"] == "stopped"
    assert not (tiny.folder / "early/failure.json").exists()


@pytest.mark.parametrize("seen", ["phase saving", "phase finished"])
def test_signals_at_the_end_of_a_run_are_ignored(tiny: TinyRun, seen: str) -> None:
    process = tiny.start("run", "optimizer.max_steps=3")
    while seen not in tiny.log("run"):
        assert process.poll() in (None, 0), tiny.log("run")
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGTERM):
        process.send_signal(number)
    assert process.wait(300) == 0, tiny.log("run")
    assert tiny.state("run")["phase"] == "finished"
    assert (tiny.folder / "run/checkpoints/latest").resolve().name == "step-00000003"


def test_signal_during_a_print_does_not_fail(capfd: pytest.CaptureFixture[str]) -> None:
    """The handler may run while the main thread is inside the buffer of stdout, which is not re-entrant."""

    class Interrupted(io.RawIOBase):
        def writable(self) -> bool:
            return True

        def write(self, data: object) -> int:
            signal.raise_signal(signal.SIGTERM)
            return len(data)  # type: ignore[arg-type]

    with StopSignals() as stop, contextlib.redirect_stdout(io.TextIOWrapper(io.BufferedWriter(Interrupted()))):
        stop.finish_steps()
        print("a line", flush=True)
    assert stop.requested == "SIGTERM"
    assert "SIGTERM: saving, then stopping" in capfd.readouterr().out


def test_resume_from_an_earlier_run_does_not_change_that_run(tiny: TinyRun, uninterrupted: list[Any]) -> None:
    tiny.train("first", "optimizer.max_steps=12", "checkpoint.keep=1")
    before = _tree(tiny.folder / "first/checkpoints")
    tiny.train("next", "optimizer.max_steps=14", resume_from=tiny.folder / "first/checkpoints")
    assert [row["step"] for row in tiny.rows("next")] == [13, 14]
    assert _tree(tiny.folder / "first/checkpoints") == before


def test_resume_from_a_folder_without_a_checkpoint_is_refused(tiny: TinyRun) -> None:
    """A wrong folder would otherwise train from scratch without a warning."""
    assert tiny.train("next", "optimizer.max_steps=2", resume_from=tiny.folder / "train") == ExitCode.INPUT
    assert "--resume-from" in tiny.failure("next")["message"]


@pytest.mark.parametrize(
    ("change", "difference"),
    [
        ("data.seed=9", "data.seed 0 -> 9"),
        ("objective.noise_std=0.02", "objective.noise_std 0.01 -> 0.02"),
        ("optimizer.lr=2e-3", "optimizer.lr 0.001 -> 0.002 (learning rate of step 5: 0.000389 -> 0.000777)"),
        ("optimizer.schedule=wsd", 'optimizer.schedule "cosine" -> "wsd" (learning rate of step 5: 0.000389 -> 0.001)'),
        (
            "optimizer.max_steps=16",
            "optimizer.max_steps 8 -> 16, steps of the run 8 -> 16 (learning rate of step 5: 0.000389 -> 0.000835)",
        ),
        ('drafter.devices=["cpu","cpu"]', 'drafter devices ["cpu"] -> ["cpu", "cpu"]'),
        ("objective.head_chunk=6", "objective.head_chunk 4096 -> 6"),
        ("objective.gamma=3", "objective.gamma 0.0 -> 3.0"),
        ("drafter.rope_theta=5e3", "drafter.rope_theta 0.0 -> 5000.0"),
    ],
)
def test_inexact_resume_names_the_changes_in_one_line(
    tiny: TinyRun, capfd: pytest.CaptureFixture[str], change: str, difference: str
) -> None:
    interrupted_run(tiny, "run", "optimizer.max_steps=8")
    assert tiny.train("run", "optimizer.max_steps=8", change) == ExitCode.FINISHED
    lines = [line for line in capfd.readouterr().out.splitlines() if "not exact" in line]
    assert lines == [f"resume is not exact: {difference}"]


def test_changed_dataset_content_is_reported(tiny: TinyRun, capfd: pytest.CaptureFixture[str]) -> None:
    interrupted_run(tiny, "run", "optimizer.max_steps=8")
    other = tiny.folder / "other"
    write_dataset(other, samples=24, seed=1, largest=249)
    assert (ArrowSamples.open(other).lengths == ArrowSamples.open(tiny.folder / "train").lengths).all()
    tiny.train("run", "optimizer.max_steps=8", "data.path=other")
    assert re.search(r'^resume is not exact: content of data.path "\w+" -> "\w+"$', capfd.readouterr().out, re.M)


def test_changed_target_content_is_reported_and_a_moved_target_is_not(
    tiny: TinyRun, capfd: pytest.CaptureFixture[str]
) -> None:
    options = ("optimizer.max_steps=8", "target.path=target", "drafter.mask_token_id=5", "target.dtype=bfloat16")
    write_dataset(tiny.folder / "ids", samples=24, seed=1, largest=120)
    published("llama", tiny.folder / "target")
    interrupted_run(tiny, "run", "data.path=ids", *options)
    shutil.copytree(tiny.folder / "run", tiny.folder / "second", symlinks=True)
    (tiny.folder / "target").rename(tiny.folder / "moved")
    assert tiny.train("run", "data.path=ids", *options, "target.path=moved") == ExitCode.FINISHED
    assert "not exact" not in capfd.readouterr().out

    (tiny.folder / "moved").rename(tiny.folder / "target")
    file = tiny.folder / "target/model.safetensors"
    weights = load_file(file)
    weights["model.layers.0.mlp.up_proj.weight"][3, 7] += 0.5
    save_file(weights, file, metadata={"format": "pt"})
    assert tiny.train("second", "data.path=ids", *options) == ExitCode.FINISHED
    assert re.search(r'^resume is not exact: content of target.path "\w+" -> "\w+"$', capfd.readouterr().out, re.M)


@pytest.mark.parametrize(
    "change",
    [
        ("data.prefetch=3", "runtime.queue_depth=1", 'target.devices=["cpu","cpu"]', "checkpoint.every_steps=3"),
        ("data.path=moved",),
        ("optimizer.max_steps=12",),
        ("objective.alpha=0.7", "objective.gamma=1.75", "objective.head_chunk=5000"),
        ("objective.kind=dpace", "objective.gamma=3"),
        ("runtime.gradient_checkpointing=true",),
        ("drafter.target_layer_ids=[1,3]", "drafter.num_captured=5", "drafter.num_kv_heads=2"),
    ],
    ids=["speed", "location", "length", "decay", "dpace", "memory", "defaults"],
)
def test_resume_without_a_warning_equals_an_uninterrupted_run(
    tiny: TinyRun, capfd: pytest.CaptureFixture[str], change: tuple[str, ...]
) -> None:
    flat = ("optimizer.schedule=wsd", "optimizer.warmup_ratio=0", "optimizer.decay_ratio=0", "optimizer.max_steps=8")
    kind = tuple(option for option in change if "kind" in option)  # kept from the start: the rest depends on it
    shutil.copytree(tiny.folder / "train", tiny.folder / "moved")
    assert tiny.train("uninterrupted", *flat, *change) == ExitCode.FINISHED
    interrupted_run(tiny, "parts", *flat, *kind)
    tiny.train("parts", *flat, *change)
    assert step_results(tiny.rows("parts")) == step_results(tiny.rows("uninterrupted"))
    assert "not exact" not in capfd.readouterr().out


def test_changed_drafter_shape_is_refused_naming_the_tensor(tiny: TinyRun) -> None:
    tiny.train("run", "optimizer.max_steps=4")
    assert tiny.train("run", "drafter.num_layers=3", "optimizer.max_steps=5") == ExitCode.INPUT
    assert "layers.2" in tiny.failure("run")["message"]


def _tree(folder: Path) -> list[tuple[str, int, float]]:
    return sorted((str(p), p.lstat().st_size, p.lstat().st_mtime) for p in folder.rglob("*"))
