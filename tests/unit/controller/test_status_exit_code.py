"""Exit code of status.yml."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

RUN = "20260101T000000Z-demo"


def status(repo: Path, root: Path, *options: str) -> subprocess.CompletedProcess[str]:
    """Run playbooks/status.yml for a box below `root`."""
    program = str(Path(sys.executable).with_name("ansible-playbook"))
    return subprocess.run(
        [program, "playbooks/status.yml", "-e", f"dflash_root={root}", "-e", "dflash_workspace=", *options],
        cwd=repo,
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "ANSIBLE_NOCOLOR": "1"},
    )


def write_ended_run(root: Path, **exit_record: object) -> None:
    """Write the folder of an ended run."""
    folder = root / "runs" / RUN
    folder.mkdir(parents=True)
    (folder / "run.json").write_text(json.dumps({"run_id": RUN}))
    (folder / "exit.json").write_text(json.dumps(exit_record))
    (root / "current").symlink_to(folder)


@pytest.mark.parametrize(
    ("exit_record", "code", "message"),
    [
        ({}, 0, "○ not running"),
        ({"rc": 0}, 0, "✔ finished"),
        ({"rc": 3}, 2, f"run {RUN} is failed"),
        ({"rc": 137, "signal": 9}, 2, f"run {RUN} is killed"),
        ({"rc": 143, "signal": 15, "shutdown": True}, 2, f"run {RUN} is lost"),
    ],
)
def test_run_that_needs_action_gives_exit_code_2(
    repo: Path, tmp_path: Path, exit_record: dict[str, object], code: int, message: str
) -> None:
    if exit_record:
        write_ended_run(tmp_path, **exit_record)
    done = status(repo, tmp_path, "-e", f"json_out={tmp_path}/status.json")
    assert done.returncode == code, done.stdout + done.stderr
    assert message in done.stdout
    assert json.loads((tmp_path / "status.json").read_text())["ok"] is (code == 0)


def test_status_strict_false_always_succeeds(repo: Path, tmp_path: Path) -> None:
    write_ended_run(tmp_path, rc=137, signal=9)
    done = status(repo, tmp_path, "-e", "status_strict=false")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "✘ killed" in done.stdout
