"""The whole loop on tiny models: workers, options, records, console."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest
import torch
from dflash_trainer.errors import ExitCode
from safetensors.torch import load_file
from tiny_runs import TinyRun, process_environment, what_was_trained


def test_loss_falls_on_data_that_can_be_learned(tiny: TinyRun) -> None:
    assert tiny.train("run", "optimizer.max_steps=80", "optimizer.lr=3e-3") == ExitCode.FINISHED
    losses = [row["loss"] for row in tiny.rows("run")]
    assert sum(losses[-10:]) < 0.97 * sum(losses[:10])


def test_any_number_of_target_workers_gives_the_same_run(tiny: TinyRun) -> None:
    tiny.train("one")
    tiny.train("three", 'target.devices=["cpu","cpu","cpu"]')
    assert what_was_trained(tiny.rows("three")) == what_was_trained(tiny.rows("one"))


def test_two_drafters_average_as_one_that_accumulates(tiny: TinyRun) -> None:
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
def test_option_trains(tiny: TinyRun, options: tuple[str, ...]) -> None:
    assert tiny.train("run", "optimizer.max_steps=4", *options) == ExitCode.FINISHED
    assert all(isinstance(row["loss"], float) for row in tiny.rows("run"))


def test_gradient_checkpointing_changes_no_number(tiny: TinyRun) -> None:
    tiny.train("plain", "optimizer.max_steps=6")
    tiny.train("checkpointed", "optimizer.max_steps=6", "runtime.gradient_checkpointing=true")
    assert what_was_trained(tiny.rows("plain")) == what_was_trained(tiny.rows("checkpointed"))


def test_warm_start_begins_with_the_published_weights(tiny: TinyRun) -> None:
    tiny.train("first", "optimizer.max_steps=20", "optimizer.lr=3e-3", "evaluation.every_steps=20")
    published = tiny.folder / "first/checkpoints/latest"
    tiny.train("warm", f"drafter.init_from={published}", "optimizer.max_steps=1", "optimizer.lr=1e-12")
    folders = (published, tiny.folder / "warm/checkpoints/latest")
    before, after = (load_file(folder / "model.safetensors") for folder in folders)
    assert all(torch.allclose(before[name], after[name], atol=1e-9) for name in before)


@pytest.mark.parametrize("damage", ["absent", "another shape", "cut short"])
def test_warm_start_that_cannot_work_is_refused_before_anything_heavy(
    tiny: TinyRun, damage: str, capfd: pytest.CaptureFixture[str]
) -> None:
    tiny.train("first", "optimizer.max_steps=1")
    file = (tiny.folder / "first/checkpoints/latest").resolve() / "model.safetensors"
    capfd.readouterr()
    if damage == "absent":
        file.unlink()
    elif damage == "cut short":
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
    assert what_was_trained(tiny.rows("with")) == what_was_trained(tiny.rows("without"))


def test_compiled_run_compiles_nothing_after_the_warm_up(tiny: TinyRun) -> None:
    """In a process of its own, so that nothing is compiled already; evaluation and a short last batch included."""
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


def test_console_shows_phases_and_steps_line_by_line(tiny: TinyRun, capfd: pytest.CaptureFixture[str]) -> None:
    tiny.train("run", "optimizer.max_steps=4", "logging.every_steps=2")
    out = capfd.readouterr().out
    phases = [line.split(":")[0] for line in out.splitlines() if line.startswith("phase ")]
    names = ["imports", "dataset", "target_weights", "first_steps", "training", "saving", "finished"]
    assert phases == [f"phase {name}" for name in names]
    assert "compiling" not in out, "this configuration compiles nothing"
    steps = [line.split() for line in out.splitlines() if line.startswith("step ")]
    assert [words[1] for words in steps] == ["1/4", "2/4", "4/4"]
    assert all({"loss", "accept", "tok/s", "lr", "queue", "eta"} <= set(words) for words in steps)


def test_run_of_a_finished_run_finishes_at_once(tiny: TinyRun) -> None:
    tiny.train("run", "optimizer.max_steps=4")
    assert tiny.train("run", "optimizer.max_steps=4") == ExitCode.FINISHED
    assert [row["step"] for row in tiny.rows("run")] == [1, 2, 3, 4]


def test_case_32_lines_appear_at_once_without_a_terminal(tiny: TinyRun) -> None:
    """Output goes to a file, unbuffered by nothing but the trainer itself."""
    process = tiny.start("run", "optimizer.max_steps=100000")
    tiny.wait_for_step("run", 3, process)
    shown = tiny.log("run")
    process.terminate()
    assert process.wait(300) == 0
    assert "step 1/" in shown


def test_case_31_finished_and_crashed_are_told_apart_by_the_record(tiny: TinyRun) -> None:
    good = subprocess.run(tiny.command("good", "optimizer.max_steps=2"), env=process_environment(), check=False)
    bad = subprocess.run(tiny.command("bad", "data.path=absent"), env=process_environment(), check=False)
    assert (good.returncode, bad.returncode) == (ExitCode.FINISHED, ExitCode.INPUT)
    assert tiny.state("good")["phase"] == "finished" and not (tiny.folder / "good/failure.json").exists()
    assert tiny.state("bad")["phase"] == "failed"
    assert json.loads((tiny.folder / "bad/failure.json").read_text())["remedy"]


def test_failure_of_an_earlier_start_is_gone_after_a_good_one(tiny: TinyRun) -> None:
    tiny.train("run", "data.path=absent")
    assert (tiny.folder / "run/failure.json").exists()
    tiny.train("run", "optimizer.max_steps=2")
    assert not (tiny.folder / "run/failure.json").exists()


def test_metrics_survive_a_torn_last_line(tiny: TinyRun) -> None:
    tiny.train("run", "optimizer.max_steps=5")
    file: Path = tiny.folder / "run/metrics.jsonl"
    file.write_text(file.read_text() + '{"step": 6, "lo')
    tiny.train("run", "optimizer.max_steps=7")
    assert [row["step"] for row in tiny.rows("run")] == [1, 2, 3, 4, 5, 6, 7]
