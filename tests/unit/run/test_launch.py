"""Launch: labels, sessions, environment and exit codes, with real tmux and real processes."""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from boxes import Box, until
from dflash_controller import screens
from dflash_ops.core import processes
from dflash_ops.core.errors import OpsError
from dflash_ops.history import prune
from dflash_ops.monitor import status
from dflash_ops.operations import ensure_run, stop
from dflash_ops.run import launch, metrics, run_processes, runs, secrets_file

pytestmark = pytest.mark.skipif(not shutil.which("tmux"), reason="tmux is not installed")


@pytest.fixture
def box(tmp_path: Path) -> Iterator[Box]:
    made = Box(tmp_path / "root with space")
    yield made
    made.end()


def quiet(_line: str) -> None:
    """Discard a live line."""


def parent_of(pid: int) -> int:
    return int((processes.stat_fields(pid) or ["", "0"])[1])


def steps(run: runs.Run) -> int:
    return len(metrics.read_metrics(run.metrics))


@pytest.mark.parametrize(
    ("label", "normal"),
    [
        ("llama3.1-8b", "llama3-1-8b"),
        ("exp:1", "exp-1"),
        ("-x", "x"),
        ("$a", "a"),
        ("a b", "a-b"),
        ("a" * 200, "a" * 40),
        ("../../etc", "etc"),
    ],
)
def test_label_is_normalised(label: str, normal: str) -> None:
    assert runs.normalise_label(label) == normal


def test_label_without_letters_or_digits_is_rejected() -> None:
    with pytest.raises(OpsError, match="training_run_label"):
        runs.normalise_label("://")


def test_run_with_special_characters_in_its_label_can_be_stopped(box: Box) -> None:
    run = box.launch(label="$a: exp.1")
    assert run.run_id.endswith("-a-exp-1")
    assert (run.folder / "train_a-exp-1.log").resolve() == run.log.resolve()
    until(lambda: steps(run) > 1)
    main = run_processes.main_process(run)
    assert main is not None
    stop.stop(box.layout, run, report=quiet)
    assert not processes.alive(main)
    assert box.state() == "stopped"


def test_run_is_detached_from_its_launcher(box: Box) -> None:
    run = box.launch()
    until(lambda: steps(run) > 1)
    before = run_processes.main_process(run)
    size = run.log.stat().st_size
    assert before is not None
    parent = int((processes.stat_fields(before.pid) or ["", "0"])[1])
    assert os.getsid(before.pid) != os.getsid(0)
    assert parent != os.getpid()
    until(lambda: run.log.stat().st_size > size, description="log growth")
    assert run_processes.main_process(run) == before


def test_killed_tmux_server_does_not_end_the_run(box: Box) -> None:
    run = box.launch()
    until(lambda: steps(run) > 1)
    launch.tmux_server(box.layout)._call("kill-server")
    at = steps(run)
    until(lambda: steps(run) > at + 3)
    assert box.state() == "running"
    stop.stop(box.layout, run, report=quiet)
    assert run.read("exit.json")["rc"] == 0


def test_a_lost_terminal_is_not_offered_and_told(box: Box) -> None:
    run = box.launch()
    until(lambda: steps(run) > 0)
    assert "attach" in status.snapshot(box.layout)["commands"]
    launch.tmux_server(box.layout)._call("kill-server")
    result = status.snapshot(box.layout)
    assert (result["state"], result["ok"]) == ("running", True)
    screen = "\n".join(screens.status_screen(result))
    assert "attach" not in screen
    assert "its session dflash is gone; the run continues without it" in screen


def test_trainer_writes_a_checkpoint_when_the_box_shuts_down(box: Box) -> None:
    run = box.launch()
    until(lambda: steps(run) > 1)
    main = run_processes.main_process(run)
    assert main is not None
    wrapper = parent_of(main.pid)
    everyone = [pid for pid in processes.all_pids() if parent_of(pid) == wrapper or pid == wrapper]
    assert len(everyone) > 2, "trainer, wrapper and log writer"
    for pid in everyone:  # an init that shuts down signals all processes at once
        os.kill(pid, signal.SIGTERM)
    until(lambda: (run.folder / "exit.json").exists())
    assert box.state() == "stopped"
    assert runs.checkpoint_steps(run)[-1] == metrics.read_metrics(run.metrics)[-1]["step"]
    until(lambda: run.log.read_text().endswith("ended with rc 0\n"))  # written after exit.json
    assert run.read("exit.json")["shutdown"] is False


@pytest.mark.parametrize(
    ("ended", "phase", "state", "detail"),
    [
        ({"rc": 1, "signal": None}, "training", "lost", "shut down during training (the trainer ended with rc 1)"),
        ({"rc": 137, "signal": 9}, "training", "lost", "shut down during training (the trainer ended with signal 9"),
        ({"rc": 0, "signal": None}, "stopped", "stopped", "shut down during training; the trainer wrote a checkpoint"),
        ({"rc": 0, "signal": None}, "finished", "finished", "training is complete"),
    ],
)
def test_shutdown_of_the_box_is_reported_as_the_cause(
    box: Box, ended: dict[str, object], phase: str, state: str, detail: str
) -> None:
    run = box.launch("optimizer.max_steps=2", "test.pause=0")
    until(lambda: (run.folder / "exit.json").exists())
    for name, more in (("exit.json", {**ended, "shutdown": True}), ("state.json", {"phase": phase})):
        (run.folder / name).write_text(json.dumps({**run.read(name), **more}))
    result = status.snapshot(box.layout)
    assert result["state"] == state
    assert detail in result["detail"]
    assert [item["name"] for item in result["problems"]] == (["lost"] if state == "lost" else [])


def test_container_restart_changes_the_boot_id(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "sys/kernel/random").mkdir(parents=True)
    (tmp_path / "sys/kernel/random/boot_id").write_text("the host's\n")
    (tmp_path / "1").mkdir()
    monkeypatch.setattr(processes, "PROC", tmp_path)
    names = []
    for ticks in ("100", "90000"):
        (tmp_path / "1/stat").write_text(f"1 (systemd) S {' '.join('0' * 18)} {ticks} 0")
        names.append(processes.boot_id())
    assert names[0] != names[1]
    assert names[0].startswith("the host's")


def test_session_of_another_name_is_left_unchanged(box: Box) -> None:
    host = launch.tmux_server(box.layout)
    box.layout.root.mkdir(exist_ok=True)
    host._call("new-session", "-d", "-s", "train-2", "--", "sleep", "600")
    assert box.state() == "not running"
    assert stop.run_to_stop(box.layout) is None
    run = box.launch(session="train")
    stop.stop(box.layout, run, report=quiet, immediately=True)
    assert host.find("train") is None
    assert host.find("train-2") is not None


def test_trainer_gets_exactly_the_recorded_environment(box: Box, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"FOO": "old", "PYTHONPATH": "/tmp/x", "LD_LIBRARY_PATH": "/tmp/y", "VIRTUAL_ENV": "/v"}.items():
        monkeypatch.setenv(name, value)
    server = launch.tmux_server(box.layout)
    subprocess.run(
        server.command("new-session", "-d", "-s", "mine", "--", "sleep", "600"),
        check=True,
        env={**os.environ, "FOO": "old"},
    )
    secrets_file.write(box.layout, {"WANDB_API_KEY": "s3cret value"})
    run = box.launch()
    until(lambda: (run.folder / "environ.json").exists())
    until(lambda: steps(run) > 0)
    seen = json.loads((run.folder / "environ.json").read_text())
    seen.pop("LC_CTYPE", None)
    assert sorted(seen) == run.record["environment"]
    assert seen["WANDB_API_KEY"] == "s3cret value"
    assert seen["PYTHONPATH"] == str(box.layout.release("r1") / "trainer")
    written = "".join(
        path.read_text() for path in run.folder.iterdir() if path.is_file() and path.name != "environ.json"
    )
    main = run_processes.main_process(run)
    assert main is not None
    assert "s3cret" not in written + " ".join(run_processes.command_line(main.pid))
    assert secrets_file.path(box.layout).stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize(("how", "state", "rc", "number"), [("exit3", "failed", 3, None), ("kill9", "killed", 137, 9)])
def test_exit_code_and_signal_are_recorded(box: Box, how: str, state: str, rc: int, number: int | None) -> None:
    run = box.launch(f"test.how={how}")
    until(lambda: (run.folder / "exit.json").exists())
    result = status.snapshot(box.layout)
    assert (result["state"], result["rc"], result["signal"], result["ok"]) == (state, rc, number, False)
    if how == "exit3":
        assert [item["name"] for item in result["problems"]] == ["failed", "gpu-out-of-memory"]
    else:
        assert "SIGKILL" in result["detail"]
        assert "relaunch.yml with this run's dflash_overrides" in result["problems"][0]["remedy"]


def test_start_script_runs_in_bash(box: Box) -> None:
    run = box.launch("test.how=exit3")
    first = (run.folder / "start_training.sh").read_text().splitlines()[0]
    assert first.endswith("bash")


def test_second_launch_is_rejected_while_a_run_is_running(box: Box) -> None:
    run = box.launch()
    with pytest.raises(OpsError, match=f"run {run.run_id} is running"):
        box.launch()
    assert runs.run_ids(box.layout) == [run.run_id]


def test_idle_session_of_a_user_is_left_unchanged(box: Box) -> None:
    host = launch.tmux_server(box.layout)
    host._call("new-session", "-d", "-s", "dflash", "--", "cat")
    before = host.find("dflash")
    with pytest.raises(OpsError, match="was not started by a launch"):
        box.launch()
    assert host.find("dflash") == before
    pane = host._call("capture-pane", "-p", "-t", "=dflash:").stdout
    assert pane.strip() == ""
    assert runs.run_ids(box.layout) == []


def test_session_of_an_ended_run_is_reused(box: Box) -> None:
    first = box.launch("optimizer.max_steps=2", "test.pause=0")
    until(lambda: (first.folder / "exit.json").exists())
    second = box.launch()
    assert second.run_id != first.run_id
    assert runs.current(box.layout) == runs.load(box.layout, second.run_id)


def test_finished_failed_and_running_are_distinct_states(box: Box) -> None:
    done = box.launch("optimizer.max_steps=3", "test.pause=0")
    until(lambda: (done.folder / "exit.json").exists())
    assert box.state(done) == "finished"
    crashed = box.launch("test.how=exit3", "test.pause=0")
    until(lambda: (crashed.folder / "exit.json").exists())
    assert box.state(crashed) == "failed"
    going = box.launch()
    until(lambda: steps(going) > 0)
    assert box.state(going) == "running"
    assert [box.state(run) for run in (done, crashed)] == ["finished", "failed"]
    offers = [set(status.snapshot(box.layout, run_id=run.run_id)["commands"]) for run in (done, crashed, going)]
    over = {"log", "status", "start"}
    assert "test.how=exit3" in status.snapshot(box.layout, run_id=crashed.run_id)["commands"]["start"]
    assert offers == [over, over, {"attach", "log", "status", "stop"}]
    until(lambda: done.log.read_text().endswith("ended with rc 0\n"))


def test_log_grows_line_by_line_and_keeps_the_last_line(box: Box) -> None:
    run = box.launch("test.pause=0.4")
    until(lambda: "step 1/" in run.log.read_text())
    at = run.log.stat().st_size
    until(lambda: run.log.stat().st_size > at, seconds=5)
    main = run_processes.main_process(run)
    assert main is not None
    last = steps(run)
    os.kill(main.pid, signal.SIGKILL)
    until(lambda: (run.folder / "exit.json").exists())
    assert f"step {last}/" in run.log.read_text()
    until(lambda: run.log.read_text().endswith("ended by signal 9\n"))


def test_relaunch_resumes_from_the_last_complete_checkpoint(box: Box) -> None:
    first = box.launch("test.how=kill9", "checkpoint.every_steps=1")
    until(lambda: (first.folder / "exit.json").exists())
    second = box.launch("checkpoint.every_steps=1")
    assert second.record["resume_from"] == first.run_id
    until(lambda: steps(second) > 0)
    assert metrics.read_metrics(second.metrics)[0]["step"] == 4
    assert f", resumed from step 3 of {first.run_id}" in "\n".join(screens.status_screen(status.snapshot(box.layout)))
    assert ensure_run._resume_note(box.layout, second) == f", resumes from step 3 of {first.run_id}"


def test_other_configuration_starts_from_scratch(box: Box) -> None:
    first = box.launch("test.how=kill9", "checkpoint.every_steps=1")
    until(lambda: (first.folder / "exit.json").exists())
    second = box.launch("drafter.num_layers=3")
    assert second.record["resume_from"] == ""


def test_suspended_trainer_is_stalled_and_can_be_stopped(box: Box) -> None:
    run = box.launch()
    until(lambda: steps(run) > 0)
    main = run_processes.main_process(run)
    assert main is not None
    os.kill(main.pid, signal.SIGSTOP)
    until(lambda: box.state() == "stalled")
    stop.stop(box.layout, run, report=quiet)
    assert box.state() == "stopped"


def test_trainer_without_output_is_stalled(box: Box) -> None:
    run = box.launch("test.how=hang", "test.pause=0")
    until(lambda: steps(run) == 3)
    os.utime(run.log, (1, 1))
    os.utime(run.metrics, (1, 1))
    state = run.read("state.json")
    (run.folder / "state.json").write_text(json.dumps({**state, "updated_at": 1}))
    (run.folder / "run.json").write_text(json.dumps({**run.record, "started_at": 1}))
    result = status.snapshot(box.layout)
    assert result["state"] == "stalled"
    assert result["problems"][0]["name"] == "stalled"
    until(lambda: status.snapshot(box.layout, stall_seconds=1e12)["state"] == "running")


def test_lost_when_trainer_and_wrapper_are_both_killed(box: Box) -> None:
    run = box.launch()
    until(lambda: steps(run) > 0)
    main = run_processes.main_process(run)
    assert main is not None
    wrapper = int((processes.stat_fields(main.pid) or ["", "0"])[1])
    os.kill(wrapper, signal.SIGKILL)
    os.kill(main.pid, signal.SIGKILL)
    until(lambda: box.state() == "lost")
    assert "both" in status.snapshot(box.layout)["detail"]


def test_restart_of_the_box_is_reported(box: Box) -> None:
    run = box.launch("optimizer.max_steps=2", "test.pause=0.5")
    until(lambda: (run.folder / "exit.json").exists())
    (run.folder / "exit.json").unlink()
    for name in ("run.json", "process.json"):
        kept = json.loads((run.folder / name).read_text())
        (run.folder / name).write_text(json.dumps({**kept, "boot_id": "an earlier boot"}))
    assert status.snapshot(box.layout)["detail"] == "the box was restarted during training"


def test_long_root_is_rejected_before_a_run_is_created(tmp_path: Path) -> None:
    box = Box(tmp_path / ("long" * 30))
    with pytest.raises(OpsError, match="dflash_root is too long"):
        box.launch()
    assert runs.run_ids(box.layout) == []


def test_script_link_points_to_the_start_script(box: Box, tmp_path: Path) -> None:
    link = tmp_path / "start_training.sh"
    run = box.launch(script_link=str(link))
    assert link.resolve() == (run.folder / "start_training.sh").resolve()


def test_file_in_place_of_the_script_link_is_rejected_before_the_start(box: Box, tmp_path: Path) -> None:
    link = tmp_path / "start_training.sh"
    link.write_text("mine")
    with pytest.raises(OpsError, match="training_run_script_link"):
        box.launch(script_link=str(link))
    assert link.read_text() == "mine"
    assert run_processes.running_processes(box.layout) == {}
    assert runs.run_ids(box.layout) == []


def test_run_in_an_earlier_workspace_is_found_and_stopped(
    box: Box, tmp_path: Path
) -> None:
    run = box.launch()
    moved = dataclasses.replace(box.layout, workspace=tmp_path / "other")
    assert status.snapshot(moved)["run_id"] == run.run_id
    with pytest.raises(OpsError, match=f"run {run.run_id} is running"):
        launch.require_nothing_running(moved)
    assert prune.needed_ids(moved, prune.kept_runs(moved, 1), "env_id")[run.record["env_id"]].startswith("run ")
    found = stop.run_to_stop(moved)
    assert found is not None
    stop.stop(moved, found, report=print)
    assert run_processes.running_processes(box.layout) == {}
