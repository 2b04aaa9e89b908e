"""Nothing trains between a stop and the launch that it was made for: told before the stop, and when none comes."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from boxes import Box, start_training
from dflash_ops.compile_cache import cache
from dflash_ops.compile_cache.cache import CacheKey, CacheState
from dflash_ops.core import gpus
from dflash_ops.history import known_good
from dflash_ops.monitor import status
from dflash_ops.operations import downtime, ensure_run, rollback
from dflash_ops.run import trainer_command
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
    """Write how a prewarm ended."""
    folder = box.layout.job(job)
    folder.mkdir(parents=True)
    end = {"ok": True, "seconds": seconds, "finished_at": at, "result": {"changed": changed}}
    (folder / "exit.json").write_text(json.dumps(end))


def place(box: Box) -> CacheKey:
    resolved = trainer_command.resolved(box.layout, box.selection)
    return cache.cache_key(box.layout, box.selection, resolved, gpus.survey())


def test_a_run_that_will_be_down_for_a_prewarm_is_told_before_it_is_stopped(box: Box) -> None:
    run = start_training(box)
    said = ensure_run.before_stop(box.layout, run_params(), check_mode=False)["message"]
    assert f"\nrun {run.run_id} is down from the stop to the launch: the compile cache is cold" in said
    assert said.endswith("none was made on this box yet, so how long is not known")
    assert box.state() == "running"


def test_how_long_the_last_prewarm_lasted_is_that_of_the_nearest_kind(box: Box) -> None:
    where = place(box)
    ended(box, "prewarm-0123456789ab-000000000000", seconds=500, at=3)
    assert downtime.last_time(box.layout, where).endswith("of another cache, lasted 8 m 20 s")
    ended(box, f"prewarm-{where.cache_id}-000000000000", seconds=200, at=2)
    assert downtime.last_time(box.layout, where) == "the last one of this cache lasted 3 m 20 s"
    ended(box, f"{where.job_id()}.previous", seconds=90, at=1)
    ended(box, where.job_id(), seconds=1, at=4, changed=False)  # found it warm
    assert downtime.last_time(box.layout, where) == "the last one of these shapes lasted 1 m 30 s"


def test_nothing_is_told_when_no_run_lives_or_nothing_has_to_be_compiled(box: Box) -> None:
    where, cold, warm = place(box), CacheState("cold", "empty"), CacheState("warm", "proved")
    assert downtime.told(box.layout, where, cold) == ""
    start_training(box)
    assert downtime.told(box.layout, where, warm) == ""
    assert "made anew (compile_cache_wipe)" in downtime.told(box.layout, where, warm, wipe=True)


def test_a_rollback_tells_it_too(box: Box) -> None:
    run = start_training(box)
    told = status.snapshot(box.layout, run_id=run.run_id)
    assert told["state"] == "running"
    known_good.promote(box.layout, {"run_id": run.run_id, **{key: run.record.get(key) for key in known_good.KEPT_KEYS}})
    said = rollback.plan(box.layout, run.run_id, {})["message"]
    assert f"run {run.run_id} is down from the stop to the launch" in said


@pytest.mark.parametrize("for_launch", [True, False])
def test_a_playbook_that_ends_between_stop_and_launch_says_that_nothing_trains(
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
    words = (
        f"localhost | run {run.run_id} is stopped and its successor was not launched, so nothing trains here: the same "
        f"command goes on with that, and .venv/bin/ansible-playbook -e dflash_root={box.layout.root} "
    )
    assert (words in done.stderr) is for_launch, done.stdout + done.stderr
