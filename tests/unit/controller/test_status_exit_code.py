"""What a script learns from the exit code of status.yml, without reading the screen."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

RUN = "20260101T000000Z-demo"


def status(repo: Path, root: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """Type playbooks/status.yml for a box below `root`."""
    program = str(Path(sys.executable).with_name("ansible-playbook"))
    return subprocess.run(
        [program, "playbooks/status.yml", "-e", f"dflash_root={root}", "-e", "dflash_workspace=", *words],
        cwd=repo,
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "ANSIBLE_NOCOLOR": "1"},
    )


def ended(root: Path, **how: object) -> None:
    """Write the folder of a run that ended."""
    folder = root / "runs" / RUN
    folder.mkdir(parents=True)
    (folder / "run.json").write_text(json.dumps({"run_id": RUN}))
    (folder / "exit.json").write_text(json.dumps(how))
    (root / "current").symlink_to(folder)


@pytest.mark.parametrize(
    ("how", "code", "told"),
    [
        ({}, 0, "○ not running"),
        ({"rc": 0}, 0, "✔ finished"),
        ({"rc": 3}, 2, f"run {RUN} is failed"),
        ({"rc": 137, "signal": 9}, 2, f"run {RUN} is killed"),
        ({"rc": 143, "signal": 15, "shutdown": True}, 2, f"run {RUN} is lost"),
    ],
)
def test_a_run_that_somebody_has_to_look_after_is_no_success(
    repo: Path, tmp_path: Path, how: dict[str, object], code: int, told: str
) -> None:
    if how:
        ended(tmp_path, **how)
    done = status(repo, tmp_path, "-e", f"json_out={tmp_path}/told.json")
    assert done.returncode == code, done.stdout + done.stderr
    assert told in done.stdout
    assert json.loads((tmp_path / "told.json").read_text())["ok"] is (code == 0)  # written either way


def test_who_only_reads_the_screen_can_do_without(repo: Path, tmp_path: Path) -> None:
    ended(tmp_path, rc=137, signal=9)
    done = status(repo, tmp_path, "-e", "status_strict=false")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "✘ killed" in done.stdout
