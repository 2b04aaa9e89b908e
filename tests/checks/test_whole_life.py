"""bench/whole_life.py refuses too few steps before it starts."""

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
    sys.modules[spec.name] = module  # dataclasses look the module up there
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("steps", ["1", "8", "9", "-3", "many"])
def test_too_few_steps_are_refused_before_anything_is_created(tmp_path: Path, steps: str) -> None:
    root, report = tmp_path / "root", tmp_path / "life.json"
    command = [sys.executable, str(PROGRAM), "--root", str(root), "--json", str(report), f"--steps={steps}"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert done.stderr.endswith(f"error: argument --steps: {steps}: give 10 or more; the first 8 are not measured\n")
    assert list(tmp_path.iterdir()) == []


def test_the_smallest_accepted_number_of_steps_gives_figures(life: ModuleType, tmp_path: Path) -> None:
    steps = life.parse_steps("10")
    rows = [row(step) for step in range(1, steps + 1)]
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in rows))
    found = life.training_figures(tmp_path)
    assert (found["steps"], found["step_ms"], found["tok_s"]) == (2, 500.0, 200.0)


def row(step: int) -> dict[str, object]:
    """Return a line of metrics.jsonl: half a second and 100 tokens per step."""
    worker = {"name": "drafter[0]", "batches": step, "busy_seconds": 0.4 * step, "host_seconds": 0.1 * step}
    return {
        **dict.fromkeys(("recompiles", "device_allocs", "device_frees", "skipped_batches", "gpus"), 0),
        **{"step": step, "time": 0.5 * step, "tokens": 100 * step, "loss": 4.0, "drafter_ms": 400.0, "queue_depth": 2},
        "workers": [worker],
    }
