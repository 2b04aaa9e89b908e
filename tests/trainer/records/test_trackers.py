"""wandb and TensorBoard: no prompt, and no failure that ends a run."""

from __future__ import annotations

import os
import pty
import subprocess
from pathlib import Path

import pytest
from dflash_trainer.config.schema import LoggingConfig
from dflash_trainer.errors import ExitCode
from dflash_trainer.records.trackers import wandb_mode
from tiny_runs import TinyRun, process_environment


def test_online_without_a_key_logs_offline_without_a_prompt(tiny: TinyRun) -> None:
    """The run has a real terminal as its input and output, as in tmux, and gets no input."""
    controller, terminal = pty.openpty()
    process = subprocess.Popen(
        tiny.command("run", "logging.wandb=online", "optimizer.max_steps=3"),
        stdin=terminal,
        stdout=terminal,
        stderr=terminal,
        env=process_environment({"HOME": str(tiny.folder), "TERM": "xterm"}),
        start_new_session=True,
    )
    os.close(terminal)
    shown = read_all(controller)
    assert process.wait(600) == ExitCode.FINISHED, shown
    assert "wandb: no WANDB_API_KEY" in shown and "logged offline" in shown
    assert list((tiny.folder / "run/wandb").glob("offline-run-*/*.wandb"))
    assert len(tiny.rows("run")) == 3


@pytest.mark.parametrize(
    ("configured", "key", "mode"),
    [("disabled", "", "disabled"), ("offline", "", "offline"), ("online", "", "offline"), ("online", "k", "online")],
)
def test_wandb_mode_depends_on_the_key(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, configured: str, key: str, mode: str
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("WANDB_API_KEY", key)
    assert wandb_mode(LoggingConfig(wandb=configured), lambda line: None) == mode  # type: ignore[arg-type]


def test_netrc_entry_counts_as_a_key(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("WANDB_API_KEY", raising=False)
    file = tmp_path / ".netrc"
    file.write_text("machine api.wandb.ai login user password secret\n")
    file.chmod(0o600)
    assert wandb_mode(LoggingConfig(wandb="online"), lambda line: None) == "online"


def test_tensorboard_files_contain_the_loss(tiny: TinyRun) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    assert tiny.train("run", "logging.tensorboard=true", "optimizer.max_steps=3") == ExitCode.FINISHED
    events = EventAccumulator(str(tiny.folder / "run/tensorboard")).Reload()
    assert [event.step for event in events.Scalars("loss")] == [1, 2, 3]


def test_tracker_that_cannot_start_is_reported_and_disabled(tiny: TinyRun, capfd: pytest.CaptureFixture[str]) -> None:
    (tiny.folder / "run").mkdir()
    (tiny.folder / "run/tensorboard").write_text("a file is in the way")
    assert tiny.train("run", "logging.tensorboard=true", "optimizer.max_steps=2") == ExitCode.FINISHED
    assert "tracker disabled: " in capfd.readouterr().out


def read_all(controller: int) -> str:
    """Return the output of a terminal until it closes."""
    parts = []
    while True:
        try:
            part = os.read(controller, 4096)
        except OSError:
            break
        if not part:
            break
        parts.append(part)
    os.close(controller)
    return b"".join(parts).decode(errors="replace")
