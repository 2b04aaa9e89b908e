"""state.json: signs of life from silent work, and the run's length in every phase."""

from __future__ import annotations

import json
import time
from pathlib import Path

from dflash_trainer.records.heartbeat import Heartbeat
from dflash_trainer.records.phase import RunState
from tiny_runs import TinyRun


def state_of(folder: Path) -> dict[str, object]:
    told: dict[str, object] = json.loads((folder / "state.json").read_text())
    return told


def test_silent_work_gives_signs_of_life_until_it_speaks(tmp_path: Path) -> None:
    state = RunState(tmp_path)
    state.enter("target_weights", "big.gguf on cpu")
    with Heartbeat(state, "target[0] reading big.gguf", every=0.1) as heartbeat:
        deadline = time.monotonic() + 20
        while not str(state_of(tmp_path)["detail"]).startswith("target[0] reading big.gguf, "):
            assert time.monotonic() < deadline, state_of(tmp_path)
            time.sleep(0.05)
        heartbeat.end()
        state.enter("target_weights", "layer 1/2", done=1, total=2)
        time.sleep(1)
        assert state_of(tmp_path)["detail"] == "layer 1/2"


def test_the_length_of_a_run_is_known_after_it_ended(tiny: TinyRun) -> None:
    tiny.train("run", "optimizer.max_steps=2")
    told = state_of(tiny.folder / "run")
    assert (told["phase"], told["step"], told["total_steps"]) == ("finished", 2, 2)
    phases = told["phases"]
    assert isinstance(phases, list)
    assert [name for name, _ in phases] == ["imports", "dataset", "target_weights", "first_steps"]
    assert "samples, " in phases[1][1]
    assert phases[2][1] == "target[0] layer 4/4", "what it came to, however quick it was"
