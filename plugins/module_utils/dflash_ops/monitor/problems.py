"""Problems of a run, each with a name, a message and a remedy."""

from __future__ import annotations

import signal
from collections.abc import Mapping, Sequence
from typing import Any

from ..core import disk, files, gpus
from ..core.paths import Layout
from ..run import checkpoints, metrics, run_processes, runs
from . import failures, rules
from .failures import problem
from .verdict import Verdict

LOG_BYTES = 262144
MIN_FREE_BYTES = 5 * disk.GIB


def of_run(
    layout: Layout,
    run: runs.Run,
    verdict: Verdict,
    answer: Mapping[str, Any],
    rows: Sequence[dict[str, Any]],
    found_gpus: gpus.Survey,
) -> list[dict[str, str]]:
    """Return every problem of a run, the reason for its end first.

    Args:
        layout: the box.
        run: the run.
        verdict: its state.
        answer: the status snapshot without its problems.
        rows: its metrics, oldest first.
        found_gpus: the GPUs of the box.
    """
    found = []
    if verdict.state in rules.DEAD:
        found += death(run, verdict)
    if verdict.state == "stalled":
        remedy = f"read {run.log}; stop.yml ends the run, relaunch.yml restarts it from its last checkpoint"
        found.append(problem("stalled", verdict.detail, remedy))
    found += _damaged_checkpoints(run)
    if verdict.state not in rules.LIVE:
        return found + _leftovers(run)
    return [*found, *_gpu_problems(run, found_gpus), *of_live_run(answer, rows), *_disk_problems(answer["disk"])]


def death(run: runs.Run, verdict: Verdict) -> list[dict[str, str]]:
    """Return the reason why a run failed, was killed or was lost, with the known failures in its log."""
    failure = run.read("failure.json")
    first = problem(verdict.state, verdict.detail, str(failure.get("remedy") or _restart_remedy(run)))
    before, after = run.record.get("oom_kills"), run_processes.cgroup_oom_kills()
    if verdict.signal == signal.SIGKILL and before is not None and after is not None and after > before:
        oom = failures.known("oom-killed")
        return [first, problem(oom.name, oom.cause, oom.remedy)]
    log = files.read_tail(run.log, LOG_BYTES)
    matches = failures.match(log.splitlines())
    if matches:
        return [first, *(match.as_problem() for match in matches)]
    if failure or verdict.state != "failed":
        return [first]
    return [first, *failures.explain(log, where=str(run.log))]


def _restart_remedy(run: runs.Run) -> str:
    steps = runs.checkpoint_steps(run)
    command = "relaunch.yml" + " with this run's dflash_overrides" * bool(run.record.get("overrides"))
    if not steps:
        return f"{command}; it starts at step 0, since this run has no complete checkpoint"
    return f"{command} resumes from step {steps[-1]}"


def _damaged_checkpoints(run: runs.Run) -> list[dict[str, str]]:
    """Return the checkpoints that no run can resume from."""
    damaged = [f"{item.path.name}: {item.damage}" for item in checkpoints.read_all(run.checkpoints) if item.damage]
    damaged += [f"{path.name} was quarantined by the trainer" for path in checkpoints.quarantined(run.checkpoints)]
    if not damaged:
        return []
    remedy = "nothing to do: the last complete checkpoint is used; prune.yml removes the damaged one with its run"
    return [problem("checkpoint-damaged", "; ".join(damaged), remedy)]


def _leftovers(run: runs.Run) -> list[dict[str, str]]:
    left = run_processes.processes_of(run)
    if not left:
        return []
    pids = ", ".join(str(process.pid) for process in left)
    text = f"the trainer has ended, but processes of its run are still running: pid {pids}"
    return [problem("leftovers", text, "playbooks/stop.yml ends them")]


def of_other_runs(layout: Layout) -> list[dict[str, str]]:
    """Return the runs that still have processes although no run is current."""
    return [
        problem("leftovers", f"processes of run {run_id} are still running", f"playbooks/stop.yml -e run={run_id}")
        for run_id in run_processes.running_processes(layout)
    ]


def _gpu_problems(run: runs.Run, found_gpus: gpus.Survey) -> list[dict[str, str]]:
    used = gpus.indices(dict(run.record.get("needs") or {}))
    if not used:
        return []
    found = [problem("gpu-trouble", text, "read the host's kernel log (Xid)") for text in found_gpus.problems]
    missing = gpus.count_problem(found_gpus, used)
    return [problem("gpu-lost", missing, failures.known("gpu-lost").remedy), *found] if missing else found


def _disk_problems(space: Mapping[str, Any]) -> list[dict[str, str]]:
    if space["free_bytes"] >= MIN_FREE_BYTES:
        return []
    text = f"{space['mount']} has {disk.format_bytes(space['free_bytes'])} free"
    return [problem("disk-nearly-full", text, "playbooks/prune.yml removes old runs, environments and caches")]


def of_live_run(answer: Mapping[str, Any], rows: Sequence[dict[str, Any]]) -> list[dict[str, str]]:
    """Return the problems of a running process: recompiles, NaN, a growing allocator, failed uploads, low speed."""
    found = []
    if answer.get("recompiles"):
        text = f"{answer['recompiles']} recompiles after the warm-up"
        found.append(problem("recompile-after-warmup", text, failures.known("recompile-after-warmup").remedy))
    if answer.get("skipped_batches"):
        text = f"{answer['skipped_batches']} batches were skipped because of NaN or Inf"
        found.append(problem("nan-loss", text, failures.known("nan-loss").remedy))
    if answer.get("allocator_flat") is False:
        text = "the GPU allocator still requests memory from the device"
        remedy = "wait for a few more steps; if it continues, the batch shapes vary: check data.buckets"
        found.append(problem("allocator-grows", text, remedy))
    if answer.get("uploads_failed"):
        text = f"{answer['uploads_failed']} uploads of checkpoints failed; training continues"
        found.append(problem("uploads-fail", text, "check the object store; local checkpoints are kept"))
    if checkpoints_fail(answer, rows):
        text = (
            f"{rows[-1]['checkpoint_failures']} checkpoints could not be written; training continues, and the last "
            "complete one is kept"
        )
        remedy = f"read {answer.get('log')} for the reason; playbooks/prune.yml frees space"
        found.append(problem("checkpoints-fail", text, remedy))
    return [*found, *slow(answer, steps=len(rows))]


def checkpoints_fail(answer: Mapping[str, Any], rows: Sequence[dict[str, Any]]) -> bool:
    """Return True when the count of failed checkpoints has risen since the newest checkpoint on disk."""
    newest = int((answer.get("checkpoint") or {}).get("step") or 0)
    before = [row for row in rows if int(row["step"]) <= newest]
    failed_before, failed = (int(part[-1].get("checkpoint_failures") or 0) if part else 0 for part in (before, rows))
    return failed > failed_before


def slow(answer: Mapping[str, Any], *, steps: int) -> list[dict[str, str]]:
    """Return the problem `slow` when the speed of a run stays below the required speed.

    Args:
        answer: the status snapshot.
        steps: number of steps that the run has logged.
    """
    expected = float(answer.get("expected_tok_s") or 0.0)
    required = rules.required_tok_s(expected, answer.get("tolerance"))
    window = int(answer.get("speed_steps") or metrics.WINDOW)
    tok_s = float(answer.get("tok_s") or 0.0)
    if not rules.is_slow(tok_s, required=required) or not rules.had_time_to_speed_up(steps, window=window):
        return []
    text = f"{tok_s:.0f} tok/s over the last {window} steps; expected {expected:.0f}, required {required:.0f}"
    return [problem("slow", text, "playbooks/compare.yml shows the differences from another run")]
