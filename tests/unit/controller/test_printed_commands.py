"""A command that a playbook prints has the options of the playbook's own box, so that it reaches the same box."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

REPO = Path(__file__).resolve().parents[3]
ANSIBLE = str(Path(sys.executable).parent / "ansible-playbook")


def play(*arguments: str) -> str:
    done = subprocess.run([ANSIBLE, *arguments], cwd=REPO, capture_output=True, text=True, check=False, env=os.environ)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_a_printed_command_reaches_the_same_box(tmp_path: Path) -> None:
    root = tmp_path / "root"
    run = root / "runs" / "20260101T000000Z-demo"
    run.mkdir(parents=True)
    (run / "run.json").write_text('{"run_id": "20260101T000000Z-demo"}')
    (run / "exit.json").write_text('{"rc": 0}')
    (root / "current").symlink_to(run)
    mine = tmp_path / "mine.yml"
    shutil.copy(REPO / "inventory" / "localhost.yml", mine)
    box = ("-i", str(mine), "-e", f"dflash_root={root}", "-e", f"dflash_workspace={root}")
    output = play("playbooks/status.yml", *box)
    printed = re.search(r"status  (\.venv/bin/ansible-playbook.*)", output)
    assert printed, output
    arguments = shlex.split(printed.group(1))[1:]
    assert arguments[:2] == ["-i", str(mine)]
    assert "20260101T000000Z-demo" in play(*arguments)


def test_the_default_box_needs_no_options(tmp_path: Path) -> None:
    assert "ansible-playbook -i" not in play("playbooks/status.yml", "-e", f"dflash_root={tmp_path}/none")
