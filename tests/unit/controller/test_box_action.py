"""Arguments that every module of the box shares are filled in from the variables."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import yaml
from dflash_ops.core import operator_lock
from dflash_ops.core.paths import Layout

ANSIBLE = str(Path(sys.executable).parent / "ansible-playbook")


def test_a_task_gets_root_workspace_and_lock_token_from_the_variables(repo: Path, tmp_path: Path) -> None:
    root, workspace, other = tmp_path / "root", tmp_path / "workspace", tmp_path / "other"
    layout = Layout.of(root)
    holder = operator_lock.Holder("me", "here", 1, 0, "another machine", "deploy")
    before = operator_lock.acquire(layout, holder)
    for folder, run in ((workspace, "20260101T000000Z-variable"), (other, "20260102T000000Z-argument")):
        (folder / "runs" / run).mkdir(parents=True)
        (folder / "runs" / run / "run.json").write_text(json.dumps({"run_id": run}))
    tasks = [
        {"dflash_report_info": {"run": "20260101T000000Z-variable"}},
        {"dflash_report_info": {"run": "20260102T000000Z-argument", "workspace": str(other)}},
    ]
    playbook = tmp_path / "play.yml"
    playbook.write_text(yaml.safe_dump([{"hosts": "localhost", "gather_facts": False, "tasks": tasks}]))
    variables = {"base": str(tmp_path), "dflash_root": "{{ base }}/root", "dflash_workspace": str(workspace)}
    variables["dflash_lock_token"] = holder.token
    done = subprocess.run(
        [ANSIBLE, str(playbook), "-e", json.dumps(variables)], cwd=repo, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    after = operator_lock.read(layout)
    assert after is not None and after["expires_at"] > before["expires_at"]
