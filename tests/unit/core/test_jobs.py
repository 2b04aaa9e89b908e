"""Jobs as real processes: started, attached to, stopped, killed and polled."""
from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from boxes import until
from dflash_ops.core import files, job_cancellation, jobs, processes
from dflash_ops.core.errors import OpsError
from dflash_ops.core.paths import Layout

ENTRIES = Path(__file__).parents[1] / "job_entries.py"


@pytest.fixture(autouse=True)
def test_entries(monkeypatch: pytest.MonkeyPatch) -> None:
    """Add the test entries to the runner's copy of the package."""
    real = jobs.package_sources

    def with_entries() -> dict[str, bytes]:
        return {**real(), "job_entries.py": ENTRIES.read_bytes()}

    monkeypatch.setattr(jobs, "package_sources", with_entries)


@pytest.fixture
def start(layout: Layout) -> Iterator[Callable[..., jobs.Snapshot]]:
    """Return a function that starts jobs, and stop them afterwards."""
    names = set()

    def run(entry: str, *, job_id: str = "job-1", **arguments: Any) -> jobs.Snapshot:
        names.add(job_id)
        return jobs.start_or_attach(layout, job_id, f"job_entries:{entry}", arguments, title="a test")

    yield run
    for name in names:
        jobs.stop_job(layout, name)
        jobs.terminate_leftovers(layout, name)


def wait_end(layout: Layout, job_id: str = "job-1", seconds: float = 20.0) -> jobs.Snapshot:
    """Follow a job to its end like the action plugin."""
    deadline, offset, lines = time.monotonic() + seconds, 0, []
    while time.monotonic() < deadline:
        now = jobs.poll(layout, job_id, offset=offset, wait=1.0)
        lines += now.lines
        offset = now.offset
        if now.state != "running":
            return jobs.Snapshot(**{**now.as_dict(), "lines": lines})
    raise AssertionError(f"job {job_id} did not end: {files.read_tail(layout.job(job_id) / 'log')}")


def runner_of(layout: Layout, job_id: str = "job-1") -> processes.Process:
    process = jobs.recorded_process(layout.job(job_id))
    assert process is not None
    return process


def test_lines_and_result_reach_the_caller(layout: Layout, start: Callable[..., jobs.Snapshot]) -> None:
    assert start("count", total=5).state == "running"
    ended = wait_end(layout)
    assert ended.state == "done"
    assert ended.lines == [f"part {number}" for number in range(1, 6)]
    assert ended.exit["result"] == {"counted": 5}
    assert ended.progress["done"] == ended.progress["total"] == 5


def test_poll_returns_the_last_line_together_with_the_end(
    layout: Layout, start: Callable[..., jobs.Snapshot], monkeypatch: pytest.MonkeyPatch
) -> None:
    start("count", total=1000, job_id="endless")
    started = jobs.poll(layout, "endless", wait=20.0)
    assert (started.state, bool(started.lines)) == ("running", True)
    monkeypatch.setattr(jobs, "FINAL_LINES_SECONDS", 20.0)
    start("count", total=1, pause=0.5)
    ended = jobs.poll(layout, "job-1", wait=20.0)
    assert (ended.state, ended.lines) == ("done", ["part 1"])


def test_runner_has_its_own_session_and_standard_files(layout: Layout, start: Callable[..., jobs.Snapshot]) -> None:
    start("count", total=100)
    runner = runner_of(layout)
    assert os.getsid(runner.pid) == runner.pid
    links = {number: os.readlink(f"/proc/{runner.pid}/fd/{number}") for number in (0, 1, 2)}
    assert links == {0: "/dev/null", 1: str(layout.job("job-1") / "log"), 2: str(layout.job("job-1") / "log")}


def test_environment_of_the_runner_is_explicit(layout: Layout, start: Callable[..., jobs.Snapshot],
                                               monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("PYTHONPATH", "LD_LIBRARY_PATH", "SSL_CERT_FILE", "CUDA_VISIBLE_DEVICES"):
        monkeypatch.setenv(name, "/nope")
    monkeypatch.setenv("HTTPS_PROXY", "http://192.0.2.1:3128")
    start("count", total=100)
    seen = processes.environment_of(runner_of(layout).pid)
    assert "/nope" not in seen.values()
    assert seen["HTTPS_PROXY"] == "http://192.0.2.1:3128"
    assert seen[jobs.JOB_MARK] == jobs.job_mark(layout, "job-1")


def test_home_relative_root_is_resolved_by_the_caller(layout: Layout, start: Callable[..., jobs.Snapshot],
                                                             tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / "elsewhere"))
    start("echo", root="~/dflash", workspace="")
    given = wait_end(layout).exit["result"]
    assert given == {"root": str(layout.root), "workspace": str(layout.workspace)}


def test_second_caller_attaches(layout: Layout, start: Callable[..., jobs.Snapshot]) -> None:
    first = start("count", total=20)
    runner = runner_of(layout)
    second = start("count", total=20)
    assert (first.attached, second.attached) == (False, True)
    assert runner_of(layout) == runner
    assert wait_end(layout).exit["result"] == {"counted": 20}


def test_job_survives_a_killed_module(layout: Layout, tmp_path: Path) -> None:
    """Kill the starter with its process group, like a dropped ssh connection."""
    package = tmp_path / "package" / "dflash_ops"
    shutil.copytree(ENTRIES.parents[2] / "plugins/module_utils/dflash_ops", package)
    shutil.copy(ENTRIES, package)
    script = ("import sys, time; sys.path.insert(0, sys.argv[1]); from dflash_ops.core import jobs, paths;"
              "jobs.start_or_attach(paths.Layout.of(sys.argv[2]), 'job-1', 'job_entries:count', "
              "{'total': 10, 'pause': 0.2});"
              "print('started', flush=True); time.sleep(600)")
    starter = subprocess.Popen([sys.executable, "-c", script, str(package.parent), str(layout.root)],
                               stdout=subprocess.PIPE, start_new_session=True, text=True)
    assert starter.stdout is not None and starter.stdout.readline() == "started\n"
    os.killpg(starter.pid, signal.SIGHUP)
    os.killpg(starter.pid, signal.SIGKILL)
    starter.wait()
    assert starter.stdout.read() == ""  # the runner does not keep the caller's pipe open
    assert jobs.poll(layout, "job-1").state == "running"
    assert wait_end(layout).exit["result"] == {"counted": 10}


def test_killed_runner_is_dead_and_the_next_start_is_fresh(layout: Layout, start: Callable[..., jobs.Snapshot]) -> None:
    start("count", total=1000)
    os.kill(runner_of(layout).pid, signal.SIGKILL)
    assert wait_end(layout).state == "dead"
    again = start("count", total=2)
    assert not again.attached
    assert wait_end(layout).exit["result"] == {"counted": 2}
    assert (layout.job("job-1.previous") / "log").exists()


def test_children_of_a_killed_runner_end_before_the_next_start(layout: Layout, start: Callable[..., jobs.Snapshot],
                                                               tmp_path: Path) -> None:
    start("spawn", pid_file=str(tmp_path / "pid"))
    until(lambda: (layout.job("job-1") / "lines").exists(), description="the child of the job")
    child = processes.find(int((tmp_path / "pid").read_text()))
    assert child is not None
    os.kill(runner_of(layout).pid, signal.SIGKILL)
    wait_end(layout)
    assert processes.alive(child)
    start("count", total=1)
    assert not processes.alive(child)


def test_job_of_an_earlier_boot_is_dead(layout: Layout, start: Callable[..., jobs.Snapshot]) -> None:
    start("count", total=1)
    wait_end(layout)
    folder = layout.job("job-1")
    (folder / "exit.json").unlink()
    me = processes.find(os.getpid())
    assert me is not None
    record = {**(files.read_json(folder / "job.json") or {}), **me.as_dict()}
    files.write_json(folder / "job.json", record)
    assert jobs.poll(layout, "job-1").state == "running"
    files.write_json(folder / "job.json", {**record, "boot_id": "another"})
    assert jobs.poll(layout, "job-1").state == "dead"


def test_same_job_of_another_root_is_not_stopped(layout: Layout, start: Callable[..., jobs.Snapshot],
                                                    tmp_path: Path) -> None:
    start("count", total=100)
    runner = runner_of(layout)
    other = Layout.of(tmp_path / "another box")
    jobs.start_or_attach(other, "job-1", "job_entries:count", {"total": 1})
    assert jobs.stop_job(other, "job-1") in (True, False)
    assert processes.alive(runner)


def test_error_of_a_job_keeps_its_remedy(layout: Layout, start: Callable[..., jobs.Snapshot]) -> None:
    start("fail")
    ended = wait_end(layout)
    assert ended.state == "failed"
    assert (ended.exit["message"], ended.exit["remedy"]) == ("the wheel is broken", "use another one")
    assert ended.exit["facts"] == {"wheel": "x.whl"}


def test_crash_keeps_its_traceback(layout: Layout, start: Callable[..., jobs.Snapshot]) -> None:
    start("crash")
    ended = wait_end(layout)
    assert "ZeroDivisionError" in ended.exit["message"]
    assert "Traceback" in ended.log_tail


def test_arguments_are_not_in_files_argv_or_environment(layout: Layout, start: Callable[..., jobs.Snapshot]) -> None:
    start("count", total=1000, password="s3cr3t-word")
    runner = runner_of(layout)
    proc = Path(f"/proc/{runner.pid}")
    assert b"s3cr3t" not in proc.joinpath("cmdline").read_bytes() + proc.joinpath("environ").read_bytes()
    assert not [path for path in files.walk_files(layout.root) if b"s3cr3t" in path.read_bytes()]


def test_stop_terminates_runner_and_children(
    layout: Layout, start: Callable[..., jobs.Snapshot], tmp_path: Path
) -> None:
    start("spawn", pid_file=str(tmp_path / "pid"))
    until(lambda: (layout.job("job-1") / "lines").exists(), description="the child of the job")
    child = processes.find(int((tmp_path / "pid").read_text()))
    assert child is not None and jobs.stop_job(layout, "job-1")
    assert not processes.alive(child)
    assert jobs.poll(layout, "job-1").state == "failed"


def test_stop_is_not_caught_by_error_handling(layout: Layout, start: Callable[..., jobs.Snapshot]) -> None:
    start("persist")
    until(lambda: (layout.job("job-1") / "lines").exists(), description="the first line of the job")
    assert jobs.stop_job(layout, "job-1")
    ended = jobs.poll(layout, "job-1")
    assert (ended.state, ended.lines) == ("failed", ["sleeping"])
    assert "was asked to stop" in ended.exit["message"]


@pytest.mark.parametrize(
    ("requested", "message"),
    [
        ("job-2", r"job='job-2': the job does not exist. Remedy: give one of job-1 \(a test\), or all"),
        ("../jobs/job-1", "the job does not exist"),
        ("stop-1", "job='stop-1': the stop of a run cannot be cancelled"),
    ],
)
def test_only_cancellable_jobs_are_cancelled(
    layout: Layout, start: Callable[..., jobs.Snapshot], requested: str, message: str
) -> None:
    start("count", total=1000)
    start("count", job_id="stop-1", total=1000)
    assert job_cancellation.cancellable_jobs(layout) == ["job-1"]
    with pytest.raises(OpsError, match=message):
        job_cancellation.cancel(layout, requested, check_mode=False)
    assert job_cancellation.cancel(layout, "all", check_mode=True)["message"] == "would cancel job-1 (a test)"
    assert jobs.poll(layout, "job-1").state == "running"
    assert job_cancellation.cancel(layout, "all", check_mode=False)["jobs"] == ["job-1"]
    assert [jobs.poll(layout, name).state for name in ("job-1", "stop-1")] == ["failed", "running"]
    again = job_cancellation.cancel(layout, "all", check_mode=False)
    assert again == {"changed": False, "jobs": [], "message": "no job to cancel"}


def test_concurrent_callers_start_one_runner(layout: Layout, tmp_path: Path) -> None:
    package = tmp_path / "package" / "dflash_ops"
    shutil.copytree(ENTRIES.parents[2] / "plugins/module_utils/dflash_ops", package)
    shutil.copy(ENTRIES, package)
    script = ("import sys; sys.path.insert(0, sys.argv[1]); from dflash_ops.core import jobs, paths;"
              "print(jobs.start_or_attach(paths.Layout.of(sys.argv[2]), 'job-1', 'job_entries:count', "
              "{'total': 30, 'pause': 0.1}).attached)")
    callers = [subprocess.Popen([sys.executable, "-c", script, str(package.parent), str(layout.root)],
                                stdout=subprocess.PIPE, text=True) for _ in range(6)]
    answers = sorted(caller.communicate()[0].strip() for caller in callers)
    assert answers == ["False"] + ["True"] * 5
    assert wait_end(layout).exit["result"] == {"counted": 30}


@pytest.mark.parametrize("name", ["", "../x", "a b", "-x", "a/b"])
def test_invalid_name_is_rejected(layout: Layout, name: str) -> None:
    with pytest.raises(OpsError, match="characters"):
        jobs.start_or_attach(layout, name, "job_entries:count", {"total": 1})
    assert not layout.root.exists()


def test_poll_of_a_missing_job_is_absent(layout: Layout) -> None:
    assert jobs.poll(layout, "job-1").state == "absent"
