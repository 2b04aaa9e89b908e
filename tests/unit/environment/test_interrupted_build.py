"""Builds that are killed, repeated and joined by a second caller."""

from __future__ import annotations

import random
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest
import wheels
from boxes import until
from dflash_ops.core import jobs, processes
from dflash_ops.core.errors import OpsError
from dflash_ops.core.paths import Layout
from dflash_ops.environment import build as environment_build
from dflash_ops.environment import inspection
from environments import arguments, build, inspect


def start(layout: Layout, params: dict[str, Any]) -> jobs.Snapshot:
    """Start the build job, or attach to it."""
    env_id = inspect(layout, params).env_id
    return jobs.start_or_attach(layout, f"env-{env_id}", environment_build.ENTRY, params)


def finish(layout: Layout, params: dict[str, Any]) -> jobs.Snapshot:
    """Start the build job or attach to it, and wait for its end."""
    job = start(layout, params)
    while job.state == "running":
        job = jobs.poll(layout, job.job_id, wait=5)
    return job


def kill(layout: Layout, job_id: str) -> bool:
    """Kill a job's runner and wait for its exit; return True if the job had not finished."""
    runner = jobs.recorded_process(layout.job(job_id))
    if runner is None or not processes.alive(runner):
        return False
    processes.send_signal([runner], signal.SIGKILL)
    assert not processes.wait_for_exit([runner], 10.0)
    return not (layout.job(job_id) / "exit.json").exists()


def test_incomplete_environment_is_never_used(layout: Layout, params: dict[str, Any]) -> None:
    incomplete = layout.env(inspect(layout, params).env_id)
    (incomplete / "bin").mkdir(parents=True)
    (incomplete / "bin/python").write_text("incomplete")
    assert inspect(layout, params).state == "missing"
    with pytest.raises(OpsError, match="is not on this box"):
        inspection.find_drift(layout, incomplete.name)
    assert build(layout, params)["state"] == "complete"
    assert inspection.find_drift(layout, incomplete.name, full=True) == []


def works(env: Path) -> bool:
    """Return True if the environment's packages import."""
    code = "import torch, transformers, demo_tool"
    return subprocess.run([env / "bin/python", "-c", code], check=False).returncode == 0


def test_build_completes_after_kills_at_random_moments(layout: Layout, params: dict[str, Any]) -> None:
    """Kill 20 heals of a drifted environment; until a heal replaces it, the old environment is unchanged and usable."""
    env = layout.env(build(layout, params)["env_id"])
    healing = {**params, "heal": True}
    mark = environment_build.site_packages(env) / "planted.py"
    mark.write_text("")
    duration = finish(layout, healing).elapsed
    rng, interrupted = random.Random(42), 0
    for attempt in range(20):
        mark.write_text(f"ATTEMPT = {attempt}\n")
        old = inspection.read_record(env)
        job = start(layout, healing)
        time.sleep(rng.uniform(0.0, duration))
        interrupted += kill(layout, job.job_id)
        assert works(env)
        if mark.exists():  # not replaced yet
            assert inspection.read_record(env) == old
            drift = inspection.find_drift(layout, env.name, full=True)
            assert [difference.path.rpartition("/")[2] for difference in drift] == [mark.name]
        else:
            assert inspection.find_drift(layout, env.name, full=True) == []
        job = finish(layout, healing)
        assert job.state == "done", job.log_tail
        assert not mark.exists()
        assert inspection.find_drift(layout, env.name, full=True) == []
    assert interrupted >= 10
    assert [path.name for path in layout.envs.iterdir()] == [env.name]
    assert list(env.rglob("~*")) == []


def test_rerun_ends_processes_of_a_killed_build(layout: Layout, wheel_folder: Path) -> None:
    index = wheels.Index([next(wheel_folder.glob("demo_tool-*"))])
    index.hold.set()
    try:
        lock = wheels.make_lock(wheel_folder.glob("demo_tool-*"))
        params = arguments(layout, lock, index_urls={"default": index.url})
        job = start(layout, params)
        until(lambda: bool(index.requests))
        kill(layout, job.job_id)
        orphans = processes.find_marked(jobs.job_mark(layout, job.job_id), mark=jobs.JOB_MARK)
        assert any("uv" in (processes.PROC / str(process.pid) / "cmdline").read_text() for process in orphans)
        index.hold.clear()
        index.resume()
        assert finish(layout, params).state == "done"
        assert not [process for process in orphans if processes.alive(process)]
    finally:
        index.resume()
        index.close()


def test_second_caller_attaches_to_the_build(layout: Layout, params: dict[str, Any]) -> None:
    first, second = start(layout, params), start(layout, params)
    assert (first.state, first.attached, second.attached) == ("running", False, True)
    assert finish(layout, params).state in ("done", "running")
    assert inspect(layout, params).state == "complete"
