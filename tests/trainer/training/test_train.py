"""The training loop on tiny models: workers, options, records and console."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest
import torch
from dflash_trainer.errors import ExitCode
from safetensors.torch import load_file
from tiny_runs import TinyRun, process_environment, step_results


def test_loss_falls_on_learnable_data(tiny: TinyRun) -> None:
    assert tiny.train("run", "optimizer.max_steps=80", "optimizer.lr=3e-3") == ExitCode.FINISHED
    losses = [row["loss"] for row in tiny.rows("run")]
    assert sum(losses[-10:]) < 0.97 * sum(losses[:10])


def test_number_of_target_workers_does_not_change_the_run(tiny: TinyRun) -> None:
    tiny.train("one")
    tiny.train("three", 'target.devices=["cpu","cpu","cpu"]')
    assert step_results(tiny.rows("three")) == step_results(tiny.rows("one"))


def test_two_drafters_equal_one_that_accumulates(tiny: TinyRun) -> None:
    tiny.train("two", 'drafter.devices=["cpu","cpu"]')
    tiny.train("accumulating", "optimizer.accumulate=2")
    two, one = tiny.rows("two"), tiny.rows("accumulating")
    assert [sorted(row["samples"]) for row in two] == [sorted(row["samples"]) for row in one]
    assert [row["loss"] for row in two] == pytest.approx([row["loss"] for row in one], rel=1e-5)


@pytest.mark.parametrize(
    "options",
    [
        ("runtime.gradient_checkpointing=true",),
        ("objective.kind=dpace",),
        ("drafter.dtype=bfloat16", "target.dtype=bfloat16"),
        ("optimizer.kind=muon", "optimizer.schedule=wsd"),
        ("target.path=random:qwen3-tiny",),
        ("target.path=random:qwen3.6-tiny", "target.fast_path=allow_slow"),
    ],
    ids=lambda options: options[0].split("=")[-1],
)
def test_run_trains_with_option(tiny: TinyRun, options: tuple[str, ...]) -> None:
    assert tiny.train("run", "optimizer.max_steps=4", *options) == ExitCode.FINISHED
    assert all(isinstance(row["loss"], float) for row in tiny.rows("run"))


def test_gradient_checkpointing_does_not_change_the_run(tiny: TinyRun) -> None:
    tiny.train("plain", "optimizer.max_steps=6")
    tiny.train("checkpointed", "optimizer.max_steps=6", "runtime.gradient_checkpointing=true")
    assert step_results(tiny.rows("plain")) == step_results(tiny.rows("checkpointed"))


def test_warm_start_uses_the_published_weights(tiny: TinyRun) -> None:
    tiny.train("first", "optimizer.max_steps=20", "optimizer.lr=3e-3", "evaluation.every_steps=20")
    published = tiny.folder / "first/checkpoints/latest"
    tiny.train("warm", f"drafter.init_from={published}", "optimizer.max_steps=1", "optimizer.lr=1e-12")
    folders = (published, tiny.folder / "warm/checkpoints/latest")
    before, after = (load_file(folder / "model.safetensors") for folder in folders)
    assert all(torch.allclose(before[name], after[name], atol=1e-9) for name in before)


@pytest.mark.parametrize("damage", ["absent", "another shape", "truncated"])
def test_unusable_warm_start_is_refused_before_weights_are_loaded(
    tiny: TinyRun, damage: str, capfd: pytest.CaptureFixture[str]
) -> None:
    tiny.train("first", "optimizer.max_steps=1")
    file = (tiny.folder / "first/checkpoints/latest").resolve() / "model.safetensors"
    capfd.readouterr()
    if damage == "absent":
        file.unlink()
    elif damage == "truncated":
        file.write_bytes(file.read_bytes()[:-100])
    layers = 3 if damage == "another shape" else 2
    code = tiny.train("wrong", f"drafter.init_from={file.parent}", f"drafter.num_layers={layers}")
    message = tiny.failure("wrong")["message"]
    assert code == ExitCode.INPUT and "drafter.init_from" in message
    assert ("layers.2" if damage == "another shape" else "model.safetensors cannot be read") in message
    assert "phase target_weights" not in capfd.readouterr().out


def test_evaluation_marks_the_best_checkpoint(tiny: TinyRun) -> None:
    tiny.train("run", "optimizer.max_steps=15", "evaluation.every_steps=5", "evaluation.samples=4")
    rows = tiny.rows("run")
    assert [row["step"] for row in rows if "eval_loss" in row] == [5, 10, 15]
    best = max((row for row in rows if "eval_loss" in row), key=lambda row: row["eval_accept_len"])
    first_best = next(row for row in rows if row.get("eval_accept_len") == best["eval_accept_len"])
    assert (tiny.folder / "run/checkpoints/best").resolve().name == f"step-{first_best['step']:08d}"


def test_evaluation_does_not_change_training(tiny: TinyRun) -> None:
    tiny.train("with", "evaluation.every_steps=5")
    tiny.train("without", "evaluation.every_steps=0")
    assert step_results(tiny.rows("with")) == step_results(tiny.rows("without"))


def test_compiled_run_does_not_recompile_after_the_warm_up(tiny: TinyRun) -> None:
    """Includes evaluation and a short last batch; a separate process ensures that nothing is compiled before."""
    small = ("data.buckets=[32]", "drafter.num_layers=1", "drafter.sliding_window=0")
    command = tiny.command("run", "runtime.compile=true", "optimizer.max_steps=8", "evaluation.every_steps=4", *small)
    command += ["--cache-dir", str(tiny.folder / "cache")]
    done = subprocess.run(command, capture_output=True, text=True, env=process_environment(), check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert {row["recompiles"] for row in tiny.rows("run")} == {0}
    assert "phase compile: every device and shape" in done.stdout
    assert "compiling 2/2 " in done.stdout
    assert "warmup 2/2" in done.stdout
    assert list((tiny.folder / "cache/inductor").iterdir())


def test_console_prints_one_line_per_phase_and_step(tiny: TinyRun, capfd: pytest.CaptureFixture[str]) -> None:
    tiny.train("run", "optimizer.max_steps=4", "logging.every_steps=2")
    out = capfd.readouterr().out
    phases = [line.split(":")[0] for line in out.splitlines() if line.startswith("phase ")]
    names = ["imports", "dataset", "target_weights", "first_steps", "training", "saving", "finished"]
    assert phases == [f"phase {name}" for name in names]
    assert "compiling" not in out, "this configuration compiles nothing"
    steps = [line.split() for line in out.splitlines() if line.startswith("step ")]
    assert [columns[1] for columns in steps] == ["1/4", "2/4", "4/4"]
    assert all({"loss", "accept", "tok/s", "lr", "queue", "eta"} <= set(columns) for columns in steps)


def test_finished_run_is_not_trained_again(tiny: TinyRun) -> None:
    tiny.train("run", "optimizer.max_steps=4")
    assert tiny.train("run", "optimizer.max_steps=4") == ExitCode.FINISHED
    assert [row["step"] for row in tiny.rows("run")] == [1, 2, 3, 4]


def test_output_to_a_file_is_not_buffered(tiny: TinyRun) -> None:
    """The output goes to a file, and PYTHONUNBUFFERED is not set."""
    process = tiny.start("run", "optimizer.max_steps=100000")
    tiny.wait_for_step("run", 3, process)
    shown = tiny.log("run")
    process.terminate()
    assert process.wait(300) == 0
    assert "step 1/" in shown


def test_record_distinguishes_a_finished_from_a_failed_run(tiny: TinyRun) -> None:
    good = subprocess.run(tiny.command("good", "optimizer.max_steps=2"), env=process_environment(), check=False)
    bad = subprocess.run(tiny.command("bad", "data.path=absent"), env=process_environment(), check=False)
    assert (good.returncode, bad.returncode) == (ExitCode.FINISHED, ExitCode.INPUT)
    assert tiny.state("good")["phase"] == "finished" and not (tiny.folder / "good/failure.json").exists()
    assert tiny.state("bad")["phase"] == "failed"
    assert json.loads((tiny.folder / "bad/failure.json").read_text())["remedy"]


def test_successful_run_removes_an_earlier_failure(tiny: TinyRun) -> None:
    tiny.train("run", "data.path=absent")
    assert (tiny.folder / "run/failure.json").exists()
    tiny.train("run", "optimizer.max_steps=2")
    assert not (tiny.folder / "run/failure.json").exists()


def test_metrics_survive_a_partial_last_line(tiny: TinyRun) -> None:
    tiny.train("run", "optimizer.max_steps=5")
    file: Path = tiny.folder / "run/metrics.jsonl"
    file.write_text(file.read_text() + '{"step": 6, "lo')
    tiny.train("run", "optimizer.max_steps=7")
    assert [row["step"] for row in tiny.rows("run")] == [1, 2, 3, 4, 5, 6, 7]
