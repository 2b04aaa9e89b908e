"""Downtime between stop and launch: the estimate before the stop, and the note when the launch does not happen."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from boxes import Box, start_training
from dflash_ops import resolved_config
from dflash_ops.compile_cache import cache
from dflash_ops.compile_cache.cache import CacheKey, CacheState
from dflash_ops.core import gpus
from dflash_ops.history import known_good
from dflash_ops.monitor import status
from dflash_ops.operations import downtime, ensure_run, rollback
from module_arguments import run_params

pytestmark = pytest.mark.skipif(not shutil.which("tmux"), reason="tmux is not installed")

PLAY = """
- hosts: trainers
  gather_facts: false
  vars: {{training_run_stop_for_launch: {for_launch}}}
  tasks:
    - ansible.builtin.import_role: {{name: training_run, tasks_from: stop}}
    - ansible.builtin.fail: {{msg: no launch}}
"""


def ended(box: Box, job: str, *, seconds: float, at: float, changed: bool = True) -> None:
    """Write exit.json of a prewarm."""
    folder = box.layout.job(job)
    folder.mkdir(parents=True)
    end = {"ok": True, "seconds": seconds, "finished_at": at, "result": {"changed": changed}}
    (folder / "exit.json").write_text(json.dumps(end))


def place(box: Box) -> CacheKey:
    return cache.cache_key(box.layout, box.selection, resolved_config.resolve(box.layout, box.selection), gpus.survey())


def test_prewarm_downtime_is_reported_before_the_stop(box: Box) -> None:
    run = start_training(box)
    message = ensure_run.check_before_stop(box.layout, run_params(), check_mode=False)["message"]
    assert f"\nrun {run.run_id} will be down from the stop until the launch: the compile cache is cold" in message
    assert message.endswith("no prewarm has run on this box yet, so the duration is unknown")
    assert box.state() == "running"


def test_duration_comes_from_the_most_similar_prewarm(box: Box) -> None:
    where = place(box)
    ended(box, "prewarm-0123456789ab-000000000000", seconds=500, at=3)
    assert downtime.last_prewarm(box.layout, where).endswith("of another cache, took 8 m 20 s")
    ended(box, f"prewarm-{where.cache_id}-000000000000", seconds=200, at=2)
    assert downtime.last_prewarm(box.layout, where) == "the last prewarm of this cache took 3 m 20 s"
    ended(box, f"{where.job_id()}.previous", seconds=90, at=1)
    ended(box, where.job_id(), seconds=1, at=4, changed=False)  # found it warm
    assert downtime.last_prewarm(box.layout, where) == "the last prewarm of these shapes took 1 m 30 s"


def test_no_downtime_without_a_running_run_or_with_a_warm_cache(box: Box) -> None:
    where, cold, warm = place(box), CacheState("cold", "empty"), CacheState("warm", "proved")
    assert downtime.message(box.layout, where, cold) == ""
    start_training(box)
    assert downtime.message(box.layout, where, warm) == ""
    assert "will be rebuilt (compile_cache_wipe)" in downtime.message(box.layout, where, warm, wipe=True)


def test_rollback_reports_the_downtime(box: Box) -> None:
    run = start_training(box)
    report = status.snapshot(box.layout, run_id=run.run_id)
    assert report["state"] == "running"
    known_good.promote(box.layout, {"run_id": run.run_id, **{key: run.record.get(key) for key in known_good.KEPT_KEYS}})
    message = rollback.plan(box.layout, run.run_id, {})["message"]
    assert f"run {run.run_id} will be down from the stop until the launch" in message


@pytest.mark.parametrize("for_launch", [True, False])
def test_playbook_that_ends_between_stop_and_launch_reports_that_nothing_is_training(
    box: Box, repo: Path, tmp_path: Path, for_launch: bool
) -> None:
    run = start_training(box)
    (tmp_path / "play.yml").write_text(PLAY.format(for_launch=str(for_launch).lower()))
    done = subprocess.run(
        [
            *(str(Path(sys.executable).with_name("ansible-playbook")), str(tmp_path / "play.yml")),
            *("-e", f"dflash_root={box.layout.root}", "-e", "dflash_workspace="),
        ],
        cwd=repo,
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "ANSIBLE_NOCOLOR": "1"},
    )
    assert done.returncode == 2, done.stdout + done.stderr
    note = (
        f"localhost | run {run.run_id} is stopped, no new run was started and nothing is training. Run the same "
        f"command again to continue, or .venv/bin/ansible-playbook -e dflash_root={box.layout.root} "
    )
    assert (note in done.stderr) is for_launch, done.stdout + done.stderr
