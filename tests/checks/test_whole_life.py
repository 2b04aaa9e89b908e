"""The measurement of a box's whole life refuses what it could not measure, before it begins."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

PROGRAM = Path(__file__).resolve().parents[2] / "bench/whole_life.py"


@pytest.fixture
def life() -> ModuleType:
    spec = importlib.util.spec_from_file_location("whole_life", PROGRAM)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # its dataclass looks itself up there
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("steps", ["1", "8", "9", "-3", "many"])
def test_too_few_steps_are_refused_before_anything_is_made(tmp_path: Path, steps: str) -> None:
    root, report = tmp_path / "root", tmp_path / "life.json"
    words = [sys.executable, str(PROGRAM), "--root", str(root), "--json", str(report), f"--steps={steps}"]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert done.stderr.endswith(f"error: argument --steps: {steps}: give 10 or more; the first 8 do not count\n")
    assert list(tmp_path.iterdir()) == []


def test_the_fewest_steps_that_are_taken_give_figures(life: ModuleType, tmp_path: Path) -> None:
    steps = life.enough_steps("10")
    rows = [row(step) for step in range(1, steps + 1)]
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(one) + "\n" for one in rows))
    found = life.course(tmp_path)
    assert (found["steps"], found["step_ms"], found["tok_s"]) == (2, 500.0, 200.0)


def row(step: int) -> dict[str, object]:
    """A line of metrics.jsonl: half a second and 100 tokens a step."""
    worker = {"name": "drafter[0]", "batches": step, "busy_seconds": 0.4 * step, "host_seconds": 0.1 * step}
    return {
        **dict.fromkeys(("recompiles", "device_allocs", "device_frees", "skipped_batches", "gpus"), 0),
        **{"step": step, "time": 0.5 * step, "tokens": 100 * step, "loss": 4.0, "drafter_ms": 400.0, "queue_depth": 2},
        "workers": [worker],
    }
