"""Unusable samples, NaN, damaged data and failing workers: skipped and counted, or a named failure, never a hang."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from dflash_trainer.data.arrow import ArrowSamples, write_samples
from dflash_trainer.errors import ExitCode, InputError
from dflash_trainer.pipeline import drafter_worker, target_worker
from dflash_trainer.target.target import Target
from tiny_runs import TinyRun


@pytest.fixture
def nan_states(monkeypatch: pytest.MonkeyPatch) -> set[tuple[int, ...]]:
    """Return the set of samples, by their first four ids, whose hidden states become NaN."""
    poisoned: set[tuple[int, ...]] = set()
    real = Target.capture

    def capture(self: Target, ids: torch.Tensor, lengths: torch.Tensor | None = None) -> torch.Tensor:
        states = real(self, ids, lengths)
        for row in range(len(ids)):
            if tuple(ids[row, :4].tolist()) in poisoned:
                states[row, 3] = torch.nan
        return states

    monkeypatch.setattr(Target, "capture", capture)
    return poisoned


def test_sample_with_nan_states_is_skipped_and_counted(tiny: TinyRun, nan_states: set) -> None:
    sample = ArrowSamples.open(tiny.folder / "train")[5]
    nan_states.add(tuple(sample.input_ids[:4].tolist()))
    assert tiny.train("run", "optimizer.max_steps=0", "optimizer.epochs=2") == ExitCode.FINISHED
    rows = tiny.rows("run")
    assert rows[-1]["skipped_samples"] == 2
    assert all(isinstance(row["loss"], float) for row in rows)
    counted = [row["skipped_samples"] for row in rows]
    hit = [row["step"] for row, before in zip(rows, [0, *counted], strict=False) if row["skipped_samples"] > before]
    assert hit == [row["step"] for row in rows if 5 in row["samples"]]


def test_nan_loss_is_skipped_and_counted_and_training_continues(
    tiny: TinyRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    loss_becomes_nan_at(monkeypatch, {3})
    assert tiny.train("run", "optimizer.max_steps=6") == ExitCode.FINISHED
    rows = tiny.rows("run")
    assert [row["skipped_batches"] for row in rows] == [0, 0, 1, 1, 1, 1]
    assert rows[2]["loss"] == "nan" and isinstance(rows[3]["loss"], float)
    assert all(isinstance(row["grad_norm"], float) for row in rows)


def test_nan_batch_is_excluded_from_an_accumulated_step(
    tiny: TinyRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    loss_becomes_nan_at(monkeypatch, {3})
    assert tiny.train("run", "optimizer.max_steps=4", "optimizer.accumulate=2") == ExitCode.FINISHED
    rows = tiny.rows("run")
    assert [row["skipped_batches"] for row in rows] == [0, 1, 1, 1]
    assert all(isinstance(row[key], float) for row in rows for key in ("loss", "grad_norm"))


def test_consecutive_nan_batches_end_the_run_with_a_good_checkpoint(
    tiny: TinyRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    loss_becomes_nan_at(monkeypatch, set(range(3, 100)))
    assert tiny.train("run") == ExitCode.NAN
    failure = tiny.failure("run")
    assert failure["name"] == "nan_run" and "runtime.nan_limit = 3" in failure["message"]
    assert tiny.state("run")["phase"] == "failed"
    assert (tiny.folder / "run/checkpoints/latest").resolve().name == "step-00000005"


def test_nan_gradient_skips_the_step_and_keeps_the_weights_finite(
    tiny: TinyRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = drafter_worker.DrafterWorker.gradient

    def gradient(self: drafter_worker.DrafterWorker, name: str) -> torch.Tensor | None:
        value = real(self, name)
        if name == "norm.weight" and value is not None and not poisoned:
            poisoned.append(name)
            return value * torch.nan
        return value

    poisoned: list[str] = []
    monkeypatch.setattr(drafter_worker.DrafterWorker, "gradient", gradient)
    assert tiny.train("run", "optimizer.max_steps=4") == ExitCode.FINISHED
    rows = tiny.rows("run")
    assert [row["skipped_batches"] for row in rows] == [1, 1, 1, 1]
    assert rows[0]["grad_norm"] == "nan" and all(isinstance(row["loss"], float) for row in rows)


def test_samples_without_answer_or_with_invalid_ids_are_skipped(tiny: TinyRun) -> None:
    add_file(
        tiny.folder / "train",
        [("no answer", [1, 2, 3, 4] * 4, [0] * 16), ("invalid id", [999] * 12, [1] * 12), ("short", [7], [1])],
    )
    assert tiny.train("run", "optimizer.max_steps=0", "optimizer.epochs=1") == ExitCode.FINISHED
    assert tiny.rows("run")[-1]["skipped_samples"] == 3


def test_batches_with_some_unusable_samples_do_not_count_as_unusable(tiny: TinyRun, nan_states: set) -> None:
    """A fifth of the samples have no answer and one has NaN states: every large batch has some and still trains."""
    rows = [(f"s{n}", [n % 50 + 1] * 14, [0] * 14 if n % 5 == 0 else [0, 0] + [1] * 12) for n in range(400)]
    add_file(tiny.folder / "train", rows)
    nan_states.add((3, 3, 3, 3))
    assert tiny.train("run", "data.batch_tokens=512", "optimizer.max_steps=10") == ExitCode.FINISHED
    last = tiny.rows("run")[-1]
    assert last["skipped_samples"] > 50 and last["skipped_batches"] == 0


def test_truncated_arrow_file_is_named_before_weights_are_loaded(
    tiny: TinyRun, capfd: pytest.CaptureFixture[str]
) -> None:
    file = tiny.folder / "train/data-00001-of-00002.arrow"
    file.write_bytes(file.read_bytes()[:-700])
    assert tiny.train("run") == ExitCode.INPUT
    assert str(file) in tiny.failure("run")["message"]
    assert "phase target_weights" not in capfd.readouterr().out


@pytest.mark.parametrize("damage", ["empty", "garbage", "header"])
def test_damaged_arrow_file_is_named(tmp_path: Path, damage: str) -> None:
    file = tmp_path / "data.arrow"
    write_samples(file, [("a", [1, 2, 3], [0, 1, 1])])
    data = {"empty": b"", "garbage": b"\x07" * 300, "header": file.read_bytes()[:40]}[damage]
    file.write_bytes(data)
    with pytest.raises(InputError, match=r"data\.arrow: damaged or truncated"):
        ArrowSamples.open(tmp_path)


def test_mask_of_another_length_is_reported_with_its_row(tmp_path: Path) -> None:
    write_samples(tmp_path / "data.arrow", [("a", [1, 2], [1, 1]), ("b", [1, 2, 3], [1, 1])])
    with pytest.raises(InputError, match="row 1 has 3 ids and 2 mask values"):
        ArrowSamples.open(tmp_path)


@pytest.mark.parametrize("owner", ["target", "drafter", "prefetch"])
@pytest.mark.parametrize("workers", [1, 2])
def test_failing_worker_ends_the_run_with_its_traceback(
    tiny: TinyRun, monkeypatch: pytest.MonkeyPatch, owner: str, workers: int
) -> None:
    make_worker_fail(monkeypatch, owner)
    devices = '["cpu"]' if workers == 1 else '["cpu", "cpu"]'
    code = tiny.train("run", f"target.devices={devices}", f"drafter.devices={devices}")
    failure = tiny.failure("run")
    assert code == ExitCode.WORKER and failure["name"] == "worker_failed"
    assert "ZeroDivisionError" in failure["message"]
    assert "in boom" in failure["traceback"]


def test_out_of_memory_has_a_specific_name_and_code(tiny: TinyRun, monkeypatch: pytest.MonkeyPatch) -> None:
    def boom(*args: object, **kwargs: object) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 9.00 GiB")

    monkeypatch.setattr(drafter_worker, "draft_loss", boom)
    assert tiny.train("run") == ExitCode.DEVICE
    assert tiny.failure("run")["name"] == "gpu_out_of_memory"


def test_missing_gpu_is_refused_before_weights_are_loaded(tiny: TinyRun, capfd: pytest.CaptureFixture[str]) -> None:
    code = tiny.train("run", 'target.devices=["cuda:0","cuda:1"]', 'drafter.devices=["cuda:98"]')
    assert code == ExitCode.DEVICE
    assert tiny.failure("run")["name"] == "gpu_missing"
    assert "phase target_weights" not in capfd.readouterr().out


def loss_becomes_nan_at(monkeypatch: pytest.MonkeyPatch, calls: set[int]) -> None:
    """Replace the loss of these training batches, counted from 1, with NaN."""
    real = drafter_worker.draft_loss
    count = [0]

    def draft_loss(*args: object, **kwargs: object) -> object:
        count[0] += 1
        output = real(*args, **kwargs)
        if count[0] in calls:
            return type(output)(output.loss * torch.nan, *[getattr(output, n) for n in list(vars(output))[1:]])
        return output

    monkeypatch.setattr(drafter_worker, "draft_loss", draft_loss)


def make_worker_fail(monkeypatch: pytest.MonkeyPatch, owner: str) -> None:
    """Make the third call in one kind of worker divide by zero."""
    count = [0]

    def failing(real: object) -> object:
        def boom(*args: object, **kwargs: object) -> object:
            count[0] += 1
            if count[0] == 3:
                count[0] = 1 // 0
            return real(*args, **kwargs)  # type: ignore[operator]

        return boom

    if owner == "drafter":
        monkeypatch.setattr(drafter_worker, "draft_loss", failing(drafter_worker.draft_loss))
    elif owner == "target":
        monkeypatch.setattr(target_worker.StatesQueue, "put", failing(target_worker.StatesQueue.put))
    else:
        from dflash_trainer.pipeline import pipeline

        monkeypatch.setattr(pipeline, "read_batch", failing(pipeline.read_batch))


def add_file(folder: Path, rows: list[tuple[str, list[int], list[int]]]) -> None:
    """Add an Arrow file to a dataset folder."""
    write_samples(folder / "data-00002-of-00003.arrow", rows)
