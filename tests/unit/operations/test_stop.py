"""Stop: checkpoint, escalation, verification, and no effect on other processes."""

from __future__ import annotations

import dataclasses
import os
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from boxes import Box, start_training, until
from dflash_ops.core import gpus, processes
from dflash_ops.core.errors import OpsError
from dflash_ops.core.gpus import Gpu, Survey
from dflash_ops.monitor import health, status, step_line
from dflash_ops.operations import stop
from dflash_ops.run import metrics, run_processes

pytestmark = pytest.mark.skipif(not shutil.which("tmux"), reason="tmux is not installed")


def test_stop_writes_a_checkpoint_of_the_last_step(box: Box) -> None:
    run = start_training(box)
    lines: list[str] = []
    done = stop.stop(box.layout, run, report=lines.append)
    assert done["state"] == "stopped"
    last = metrics.read_metrics(run.metrics)[-1]["step"]
    assert done["checkpoint_step"] == last
    assert step_line.step_text(status.snapshot(box.layout)).startswith(f"{last}/400")
    assert not done["forced"]
    assert lines[-1].startswith("verified")


def test_second_stop_changes_nothing(box: Box) -> None:
    assert status.snapshot(box.layout)["state"] == "not running"
    assert stop.run_to_stop(box.layout) is None
    run = start_training(box)
    stop.stop(box.layout, run, report=lambda _line: None)
    assert not run_processes.processes_of(run)
    assert stop.stop(box.layout, run, report=lambda _line: None)["state"] == "stopped"


def test_state_of_a_missing_run_is_unknown(box: Box) -> None:
    result = status.snapshot(box.layout, run_id="no-such-run")
    assert result["state"] == "unknown"
    assert result["ok"] is False


def test_processes_that_only_name_the_trainer_keep_running(box: Box, tmp_path: Path) -> None:
    run = start_training(box)
    main = run_processes.main_process(run)
    assert main is not None
    argv = run_processes.command_line(main.pid)
    editor = subprocess.Popen(
        [sys.executable, "-c", "import time; time.sleep(600)", *argv, str(run.folder), "dflash_trainer"]
    )
    shell = subprocess.Popen(["/bin/sh", "-c", f"sleep 600; : dflash_trainer train {run.run_id}"])
    try:
        stop.stop(box.layout, run, report=lambda _line: None)
        assert editor.poll() is None
        assert shell.poll() is None
    finally:
        editor.kill()
        shell.kill()
        editor.wait()
        shell.wait()


def test_run_of_another_root_with_the_same_id_keeps_running(box: Box, tmp_path: Path) -> None:
    run = start_training(box)
    marks = {"DFLASH_RUN_ID": run.run_id, "DFLASH_RUN_DIR": str(tmp_path / "other" / "runs" / run.run_id)}
    other = subprocess.Popen(["/bin/sleep", "600"], env=marks)
    try:
        until(lambda: processes.environment_of(other.pid) == marks)
        stop.stop(box.layout, run, report=lambda _line: None)
        assert other.poll() is None
        assert run_processes.running_processes(box.layout) == {}
    finally:
        other.kill()
        other.wait()


def test_children_in_other_sessions_are_ended(box: Box) -> None:
    run = start_training(box, "test.how=children")
    sessions = lambda: {os.getsid(process.pid) for process in run_processes.processes_of(run)}  # noqa: E731
    until(lambda: len(sessions()) == 3, description="children in separate sessions")
    found = run_processes.processes_of(run)
    assert len(found) == 3
    port = int((run.folder / "port").read_text())
    assert run_processes.listening_ports([process.pid for process in found]) == [port]
    done = stop.stop(box.layout, run, report=lambda _line: None, term_seconds=0.5)
    assert not any(processes.alive(process) for process in found)
    assert done["left"] == {"pids": (), "gpu_pids": (), "gpus": (), "ports": ()}
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", port), timeout=2).close()


def test_children_of_a_dead_trainer_are_reported_and_block_a_launch(box: Box) -> None:
    run = start_training(box, "test.how=children")
    main = run_processes.main_process(run)
    assert main is not None
    os.kill(main.pid, 9)
    until(lambda: box.state() == "killed")
    assert "leftovers" in [item["name"] for item in status.snapshot(box.layout)["problems"]]
    with pytest.raises(OpsError, match="some of its processes are still running"):
        box.launch()
    stop.stop(box.layout, run, report=lambda _line: None, term_seconds=0.2)
    assert run_processes.processes_of(run) == []


def h200(used: int, *, state: str = "ok", problems: tuple[str, ...] = ()) -> Survey:
    """Two GPUs as seen in a container: memory in use and no process listed."""
    rows = tuple(Gpu(index, f"GPU-{index}", "NVIDIA H200", "570", 143771, used, 0) for index in range(2))
    return Survey(state=state, gpus=rows if state == "ok" else (), problems=problems)


def test_gpu_memory_without_a_visible_process_fails_the_stop(
    box: Box, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = start_training(box, "test.gpus=2")
    monkeypatch.setattr(gpus, "survey", lambda: h200(70000))
    with pytest.raises(OpsError, match="memory of a process that is not visible here, on GPU 0, 1"):
        stop.stop(box.layout, run, report=lambda _line: None, immediately=True)


def test_stop_waits_for_the_driver_and_reports_gpus_that_do_not_answer(
    box: Box, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers = iter([h200(70000), h200(70000), h200(4)])
    monkeypatch.setattr(gpus, "survey", lambda: next(answers))
    lines: list[str] = []
    stop.stop(box.layout, start_training(box, "test.gpus=2"), report=lines.append, immediately=True)
    assert "no GPU memory" in lines[-1]
    monkeypatch.setattr(gpus, "survey", lambda: h200(0, state="unknown", problems=("nvidia-smi gave no answer",)))
    stop.stop(box.layout, start_training(box, "test.gpus=2"), report=lines.append, immediately=True)
    assert "no GPU memory" not in lines[-1]
    assert lines[-1].endswith("its GPUs could not be queried: nvidia-smi gave no answer")


def test_run_that_lost_a_gpu_is_reported(box: Box, monkeypatch: pytest.MonkeyPatch) -> None:
    start_training(box, "test.gpus=2")
    monkeypatch.setattr(gpus, "survey", lambda: h200(70000))
    assert status.snapshot(box.layout)["problems"] == []
    monkeypatch.setattr(gpus, "survey", lambda: dataclasses.replace(h200(70000), gpus=h200(70000).gpus[:1]))
    result = status.snapshot(box.layout)
    assert [item["name"] for item in result["problems"]] == ["gpu-lost"]
    assert health.judge(result, health.Goal()).state == "gpu-lost"
    monkeypatch.setattr(gpus, "survey", lambda: h200(0, state="unknown", problems=("it hangs",)))
    assert "could not be counted: it hangs" in status.snapshot(box.layout)["problems"][0]["message"]


def test_trainer_that_ignores_sigterm_is_killed_after_the_timeout(box: Box) -> None:
    run = start_training(box, "test.how=deaf")
    lines: list[str] = []
    done = stop.stop(box.layout, run, report=lines.append, seconds=1.0, term_seconds=0.3)
    assert done["forced"]
    assert done["state"] == "stopped"
    assert any("did not exit" in line for line in lines)


def test_immediate_stop_does_not_wait_for_a_checkpoint(box: Box) -> None:
    run = start_training(box)
    done = stop.stop(box.layout, run, report=lambda _line: None, immediately=True)
    assert done["forced"]
    assert run_processes.processes_of(run) == []


def test_run_without_current_link_is_still_found(box: Box) -> None:
    run = start_training(box)
    box.layout.current.unlink()
    found = stop.run_to_stop(box.layout)
    assert found is not None
    assert found.run_id == run.run_id
