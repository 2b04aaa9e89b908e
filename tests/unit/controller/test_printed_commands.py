"""A command that is printed for people names the box as it was named: typed again, it reaches the same one."""

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


def play(*words: str) -> str:
    done = subprocess.run([ANSIBLE, *words], cwd=REPO, capture_output=True, text=True, check=False, env=os.environ)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_a_hint_reaches_the_box_that_was_looked_at(tmp_path: Path) -> None:
    root = tmp_path / "root"
    run = root / "runs" / "20260101T000000Z-demo"
    run.mkdir(parents=True)
    (run / "run.json").write_text('{"run_id": "20260101T000000Z-demo"}')
    (run / "exit.json").write_text('{"rc": 0}')
    (root / "current").symlink_to(run)
    mine = tmp_path / "mine.yml"
    shutil.copy(REPO / "inventory" / "localhost.yml", mine)
    told = play("playbooks/status.yml", "-i", str(mine), "-e", f"dflash_root={root}", "-e", f"dflash_workspace={root}")
    hint = re.search(r"status  (\.venv/bin/ansible-playbook.*)", told)
    assert hint, told
    words = shlex.split(hint.group(1))[1:]
    assert words[:2] == ["-i", str(mine)]
    assert "20260101T000000Z-demo" in play(*words)


def test_the_usual_box_needs_no_words(tmp_path: Path) -> None:
    assert "ansible-playbook -i" not in play("playbooks/status.yml", "-e", f"dflash_root={tmp_path}/none")
