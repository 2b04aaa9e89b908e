"""state.json: heartbeats during silent work, and the size of the run in every phase."""

from __future__ import annotations

import json
import time
from pathlib import Path

from dflash_trainer.records.heartbeat import Heartbeat
from dflash_trainer.records.phase import RunState
from tiny_runs import TinyRun


def read_state(folder: Path) -> dict[str, object]:
    state: dict[str, object] = json.loads((folder / "state.json").read_text())
    return state


def test_heartbeat_reports_silent_work_until_the_next_message(tmp_path: Path) -> None:
    state = RunState(tmp_path)
    state.enter("target_weights", "big.gguf on cpu")
    with Heartbeat(state, "target[0] reading big.gguf", every=0.1) as heartbeat:
        deadline = time.monotonic() + 20
        while not str(read_state(tmp_path)["detail"]).startswith("target[0] reading big.gguf, "):
            assert time.monotonic() < deadline, read_state(tmp_path)
            time.sleep(0.05)
        heartbeat.end()
        state.enter("target_weights", "layer 1/2", done=1, total=2)
        time.sleep(1)
        assert read_state(tmp_path)["detail"] == "layer 1/2"


def test_finished_state_has_the_total_steps_and_phases(tiny: TinyRun) -> None:
    tiny.train("run", "optimizer.max_steps=2")
    state = read_state(tiny.folder / "run")
    assert (state["phase"], state["step"], state["total_steps"]) == ("finished", 2, 2)
    phases = state["phases"]
    assert isinstance(phases, list)
    assert [name for name, _ in phases] == ["imports", "dataset", "target_weights", "first_steps"]
    assert "samples, " in phases[1][1]
    assert phases[2][1] == "target[0] layer 4/4", "the final detail of a phase is recorded even if the phase was short"
