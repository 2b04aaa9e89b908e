"""Two nodes (processes with torchrun's variables, gloo on CPU) train like one node with two drafters."""

from __future__ import annotations

import socket
import subprocess
from pathlib import Path

import pytest
import torch
from dflash_trainer.errors import ExitCode
from safetensors.torch import load_file
from tiny_runs import TinyRun, process_environment, step_results

STEPS = "optimizer.max_steps=10"


def start_nodes(tiny: TinyRun, name: str, *overrides: str, count: int = 2) -> list[subprocess.Popen[str]]:
    """Start `count` nodes of one run on this machine."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    (tiny.folder / f"{name}.log").write_text("see the logs of the nodes")
    nodes = []
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
            nodes.append(
                subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, env=process_environment(env), text=True)
            )
    return nodes


def finish(tiny: TinyRun, name: str, nodes: list[subprocess.Popen[str]]) -> list[int]:
    """Return the exit codes of all nodes."""
    try:
        return [node.wait(600) for node in nodes]
    finally:
        for node in nodes:
            node.kill()
        for rank in range(len(nodes)):
            print((tiny.folder / f"{name}-{rank}.log").read_text())


def weights(folder: Path) -> dict[str, torch.Tensor]:
    """Return the weights of a run's latest checkpoint."""
    return load_file(folder / "checkpoints/latest/model.safetensors")


def test_two_nodes_train_like_one_node_with_two_drafters(tiny: TinyRun) -> None:
    nodes = start_nodes(tiny, "nodes", STEPS, "evaluation.every_steps=5")
    assert finish(tiny, "nodes", nodes) == [0, 0]
    assert tiny.train("one", 'drafter.devices=["cpu","cpu"]', STEPS, "evaluation.every_steps=5") == ExitCode.FINISHED
    two_nodes, one_node = tiny.rows("nodes"), tiny.rows("one")
    assert [row["tokens"] for row in two_nodes] == [row["tokens"] for row in one_node]
    for key in ("loss", "accept_len", "grad_norm"):
        assert [row[key] for row in two_nodes] == pytest.approx([row[key] for row in one_node], rel=1e-5), key
    assert two_nodes[-1]["eval_loss"] == pytest.approx(one_node[-1]["eval_loss"], rel=1e-5)
    expected = weights(tiny.folder / "one")
    found = weights(tiny.folder / "nodes")
    for name, value in expected.items():
        torch.testing.assert_close(found[name], value, rtol=1e-4, atol=1e-6)
    assert not (tiny.folder / "nodes/node-1/checkpoints").exists()


def test_killed_nodes_resume_from_the_checkpoint_of_rank_zero_bit_for_bit(tiny: TinyRun) -> None:
    assert finish(tiny, "uninterrupted", start_nodes(tiny, "uninterrupted")) == [0, 0]
    nodes = start_nodes(tiny, "nodes")
    tiny.wait_for_step("nodes", 7, nodes[0])
    kill_all(nodes)
    assert finish(tiny, "nodes", start_nodes(tiny, "nodes")) == [0, 0]
    assert step_results(tiny.rows("nodes")) == step_results(tiny.rows("uninterrupted"))


def test_signal_to_one_node_stops_all_at_the_same_step(tiny: TinyRun) -> None:
    nodes = start_nodes(tiny, "nodes", "optimizer.max_steps=4000")
    tiny.wait_for_step("nodes", 3, nodes[0])
    nodes[1].terminate()
    assert finish(tiny, "nodes", nodes) == [0, 0]
    assert tiny.state("nodes")["phase"] == tiny.state("nodes/node-1")["phase"] == "stopped"
    assert tiny.state("nodes")["step"] == tiny.state("nodes/node-1")["step"]


def test_dead_node_ends_the_other_with_a_named_failure(tiny: TinyRun) -> None:
    nodes = start_nodes(tiny, "nodes", "optimizer.max_steps=100000")
    tiny.wait_for_step("nodes", 3, nodes[0])
    nodes[1].kill()
    codes = finish(tiny, "nodes", nodes)
    assert codes == [ExitCode.WORKER, -9]
    assert tiny.failure("nodes")["name"] == "worker_failed"


def test_several_processes_on_a_gpu_node_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    from dflash_trainer.errors import ConfigError
    from dflash_trainer.pipeline.node_group import NodeGroup

    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    with pytest.raises(ConfigError, match="one process drives all GPUs of a node"):
        NodeGroup.join(cuda=True)


def kill_all(nodes: list[subprocess.Popen[str]]) -> None:
    """Kill all nodes with SIGKILL."""
    for node in nodes:
        node.kill()
    assert [node.wait() for node in nodes] == [-9] * len(nodes)
