"""Two boxes (two processes with torchrun's variables, gloo on CPU) train as one box with two drafters does."""

from __future__ import annotations

import socket
import subprocess
from pathlib import Path

import pytest
import torch
from dflash_trainer.errors import ExitCode
from safetensors.torch import load_file
from tiny_runs import TinyRun, process_environment, what_was_trained

STEPS = "optimizer.max_steps=10"


def start_boxes(tiny: TinyRun, name: str, *overrides: str, count: int = 2) -> list[subprocess.Popen[str]]:
    """Start `count` boxes of one run on this machine."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    (tiny.folder / f"{name}.log").write_text("see the logs of the boxes")
    boxes = []
    for rank in range(count):
        env = {
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(port),
            "WORLD_SIZE": str(count),
            "RANK": str(rank),
            "LOCAL_WORLD_SIZE": "1",
            "LOCAL_RANK": "0",
        }
        with (tiny.folder / f"{name}-{rank}.log").open("a") as log:
            command = tiny.command(name, *overrides)
            boxes.append(
                subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, env=process_environment(env), text=True)
            )
    return boxes


def finish(tiny: TinyRun, name: str, boxes: list[subprocess.Popen[str]]) -> list[int]:
    """Exit codes of all boxes."""
    try:
        return [box.wait(600) for box in boxes]
    finally:
        for box in boxes:
            box.kill()
        for rank in range(len(boxes)):
            print((tiny.folder / f"{name}-{rank}.log").read_text())


def weights(folder: Path) -> dict[str, torch.Tensor]:
    """Weights of a run's latest checkpoint."""
    return load_file(folder / "checkpoints/latest/model.safetensors")


def test_two_boxes_train_as_one_box_with_two_drafters(tiny: TinyRun) -> None:
    boxes = start_boxes(tiny, "boxes", STEPS, "evaluation.every_steps=5")
    assert finish(tiny, "boxes", boxes) == [0, 0]
    assert tiny.train("one", 'drafter.devices=["cpu","cpu"]', STEPS, "evaluation.every_steps=5") == ExitCode.FINISHED
    both, one = tiny.rows("boxes"), tiny.rows("one")
    assert [row["tokens"] for row in both] == [row["tokens"] for row in one]
    for key in ("loss", "accept_len", "grad_norm"):
        assert [row[key] for row in both] == pytest.approx([row[key] for row in one], rel=1e-5), key
    assert both[-1]["eval_loss"] == pytest.approx(one[-1]["eval_loss"], rel=1e-5)
    expected = weights(tiny.folder / "one")
    found = weights(tiny.folder / "boxes")
    for name, value in expected.items():
        torch.testing.assert_close(found[name], value, rtol=1e-4, atol=1e-6)
    assert not (tiny.folder / "boxes/node-1/checkpoints").exists()


def test_case_62_killed_boxes_go_on_from_the_leaders_checkpoint_bit_for_bit(tiny: TinyRun) -> None:
    assert finish(tiny, "whole", start_boxes(tiny, "whole")) == [0, 0]
    boxes = start_boxes(tiny, "boxes")
    tiny.wait_for_step("boxes", 7, boxes[0])
    kill_all(boxes)
    assert finish(tiny, "boxes", start_boxes(tiny, "boxes")) == [0, 0]
    assert what_was_trained(tiny.rows("boxes")) == what_was_trained(tiny.rows("whole"))


def test_signal_to_one_box_stops_all_at_the_same_step(tiny: TinyRun) -> None:
    boxes = start_boxes(tiny, "boxes", "optimizer.max_steps=4000")
    tiny.wait_for_step("boxes", 3, boxes[0])
    boxes[1].terminate()
    assert finish(tiny, "boxes", boxes) == [0, 0]
    assert tiny.state("boxes")["phase"] == tiny.state("boxes/node-1")["phase"] == "stopped"
    assert tiny.state("boxes")["step"] == tiny.state("boxes/node-1")["step"]


def test_dead_box_ends_the_other_with_a_name_instead_of_a_hang(tiny: TinyRun) -> None:
    boxes = start_boxes(tiny, "boxes", "optimizer.max_steps=100000")
    tiny.wait_for_step("boxes", 3, boxes[0])
    boxes[1].kill()
    codes = finish(tiny, "boxes", boxes)
    assert codes == [ExitCode.WORKER, -9]
    assert tiny.failure("boxes")["name"] == "worker_failed"


def test_several_processes_on_a_gpu_box_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    from dflash_trainer.errors import ConfigError
    from dflash_trainer.pipeline.node_group import NodeGroup

    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    with pytest.raises(ConfigError, match="one process drives all GPUs of a box"):
        NodeGroup.join(cuda=True)


def kill_all(boxes: list[subprocess.Popen[str]]) -> None:
    """Kill -9 all boxes."""
    for box in boxes:
        box.kill()
    assert [box.wait() for box in boxes] == [-9] * len(boxes)
