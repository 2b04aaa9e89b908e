"""Stop: waits, escalates, proves, and touches nobody else."""

from __future__ import annotations

import dataclasses
import os
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from boxes import Box, going, until
from dflash_ops.core import gpus, processes
from dflash_ops.core.errors import OpsError
from dflash_ops.core.gpus import Gpu, Survey
from dflash_ops.monitor import health, status, step_line
from dflash_ops.operations import stop
from dflash_ops.run import metrics, run_processes

pytestmark = pytest.mark.skipif(not shutil.which("tmux"), reason="tmux is not installed")


def test_stop_leaves_a_checkpoint_of_the_last_step(box: Box) -> None:
    run = going(box)
    lines: list[str] = []
    done = stop.stop(box.layout, run, say=lines.append)
    assert done["state"] == "stopped"
    last = metrics.read_metrics(run.metrics)[-1]["step"]
    assert done["checkpoint_step"] == last
    assert step_line.step_text(status.snapshot(box.layout)).startswith(f"{last}/400")
    assert not done["forced"]
    assert lines[-1].startswith("proved")


def test_case_07_stop_twice_and_status_of_an_empty_box(box: Box) -> None:
    assert status.snapshot(box.layout)["state"] == "not running"
    assert stop.run_to_stop(box.layout) is None
    run = going(box)
    stop.stop(box.layout, run, say=lambda _line: None)
    assert not run_processes.of_run(run)
    assert stop.stop(box.layout, run, say=lambda _line: None)["state"] == "stopped"


def test_case_07_unknown_is_a_state_of_its_own(box: Box) -> None:
    told = status.snapshot(box.layout, run_id="no-such-run")
    assert told["state"] == "unknown"
    assert told["ok"] is False


def test_case_24_those_that_only_name_the_trainer_live_on(box: Box, tmp_path: Path) -> None:
    run = going(box)
    main = run_processes.main_process(run)
    assert main is not None
    words = run_processes.command_line(main.pid)
    editor = subprocess.Popen(
        [sys.executable, "-c", "import time; time.sleep(600)", *words, str(run.folder), "dflash_trainer"]
    )
    shell = subprocess.Popen(["/bin/sh", "-c", f"sleep 600; : dflash_trainer train {run.run_id}"])
    try:
        stop.stop(box.layout, run, say=lambda _line: None)
        assert editor.poll() is None
        assert shell.poll() is None
    finally:
        editor.kill()
        shell.kill()
        editor.wait()
        shell.wait()


def test_run_of_another_root_with_the_same_id_lives_on(box: Box, tmp_path: Path) -> None:
    run = going(box)
    marks = {"DFLASH_RUN_ID": run.run_id, "DFLASH_RUN_DIR": str(tmp_path / "other" / "runs" / run.run_id)}
    other = subprocess.Popen(["/bin/sleep", "600"], env=marks)
    try:
        until(lambda: processes.environment_of(other.pid) == marks)
        stop.stop(box.layout, run, say=lambda _line: None)
        assert other.poll() is None
        assert run_processes.all_living(box.layout) == {}
    finally:
        other.kill()
        other.wait()


def test_case_28_children_that_left_the_session_are_ended_and_it_is_proved(box: Box) -> None:
    run = going(box, "test.how=children")
    sessions = lambda: {os.getsid(process.pid) for process in run_processes.of_run(run)}  # noqa: E731
    until(lambda: len(sessions()) == 3, what="children in own sessions")
    found = run_processes.of_run(run)
    assert len(found) == 3
    port = int((run.folder / "port").read_text())
    assert run_processes.listening_ports([process.pid for process in found]) == [port]
    done = stop.stop(box.layout, run, say=lambda _line: None, term_seconds=0.5)
    assert not any(processes.alive(process) for process in found)
    assert done["left"] == {"pids": (), "gpu_pids": (), "gpus": (), "ports": ()}
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", port), timeout=2).close()


def test_case_28_children_left_by_a_dead_trainer_are_named_and_block_a_launch(box: Box) -> None:
    run = going(box, "test.how=children")
    main = run_processes.main_process(run)
    assert main is not None
    os.kill(main.pid, 9)
    until(lambda: box.state() == "killed")
    assert "leftovers" in [item["name"] for item in status.snapshot(box.layout)["problems"]]
    with pytest.raises(OpsError, match="processes of it are left"):
        box.launch()
    stop.stop(box.layout, run, say=lambda _line: None, term_seconds=0.2)
    assert run_processes.of_run(run) == []


def h200(used: int, *, state: str = "ok", problems: tuple[str, ...] = ()) -> Survey:
    """Two GPUs as a container sees them: memory in use, and no process listed."""
    rows = tuple(Gpu(index, f"GPU-{index}", "NVIDIA H200", "570", 143771, used, 0) for index in range(2))
    return Survey(state=state, gpus=rows if state == "ok" else (), problems=problems)


def test_case_55_memory_without_a_process_in_sight_is_no_proof_that_a_stopped_run_left(
    box: Box, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = going(box, "test.gpus=2")
    monkeypatch.setattr(gpus, "survey", lambda: h200(70000))
    with pytest.raises(OpsError, match="memory, of a process that cannot be seen from here, on GPU 0, 1"):
        stop.stop(box.layout, run, say=lambda _line: None, now=True)


def test_a_driver_that_needs_a_moment_and_gpus_that_do_not_answer(box: Box, monkeypatch: pytest.MonkeyPatch) -> None:
    answers = iter([h200(70000), h200(70000), h200(4)])
    monkeypatch.setattr(gpus, "survey", lambda: next(answers))
    said: list[str] = []
    stop.stop(box.layout, going(box, "test.gpus=2"), say=said.append, now=True)
    assert "no GPU memory" in said[-1]
    monkeypatch.setattr(gpus, "survey", lambda: h200(0, state="unknown", problems=("nvidia-smi gave no answer",)))
    stop.stop(box.layout, going(box, "test.gpus=2"), say=said.append, now=True)
    assert "no GPU memory" not in said[-1]
    assert said[-1].endswith("its GPUs could not be asked: nvidia-smi gave no answer")


def test_case_54_a_run_that_lost_a_gpu_is_flagged(box: Box, monkeypatch: pytest.MonkeyPatch) -> None:
    going(box, "test.gpus=2")
    monkeypatch.setattr(gpus, "survey", lambda: h200(70000))
    assert status.snapshot(box.layout)["problems"] == []
    monkeypatch.setattr(gpus, "survey", lambda: dataclasses.replace(h200(70000), gpus=h200(70000).gpus[:1]))
    told = status.snapshot(box.layout)
    assert [item["name"] for item in told["problems"]] == ["gpu-lost"]
    assert health.judge(told, health.Goal()).state == "gpu-lost"
    monkeypatch.setattr(gpus, "survey", lambda: h200(0, state="unknown", problems=("it hangs",)))
    assert "could not be counted: it hangs" in status.snapshot(box.layout)["problems"][0]["message"]


def test_deaf_trainer_is_killed_after_its_time(box: Box) -> None:
    run = going(box, "test.how=deaf")
    lines: list[str] = []
    done = stop.stop(box.layout, run, say=lines.append, seconds=1.0, term_seconds=0.3)
    assert done["forced"]
    assert done["state"] == "stopped"
    assert any("did not leave" in line for line in lines)


def test_stop_now_does_not_wait(box: Box) -> None:
    run = going(box)
    done = stop.stop(box.layout, run, say=lambda _line: None, now=True)
    assert done["forced"]
    assert run_processes.of_run(run) == []


def test_run_without_current_link_is_still_found(box: Box) -> None:
    run = going(box)
    box.layout.current.unlink()
    found = stop.run_to_stop(box.layout)
    assert found is not None
    assert found.run_id == run.run_id
