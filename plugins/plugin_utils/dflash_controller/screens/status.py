"""Status screen of a box: its run, its GPUs, its jobs and its problems."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

from dflash_ops.core import disk, durations
from dflash_ops.monitor import rules
from dflash_ops.monitor.step_line import step_text

from dflash_controller.screens.text import BAD, MARKS, number, problem_lines, rows


def status_screen(answer: Mapping[str, Any]) -> list[str]:
    """Return the status of one box."""
    state = str(answer["state"])
    head = f"{MARKS.get(state, BAD)} {state}: {answer.get('detail') or ''}".rstrip(": ")
    problems = problem_lines(answer.get("problems") or ())
    if not answer.get("run_id"):
        return [head, *rows([("gpus", gpu_text(answer.get("gpus") or ())), *_activity_pairs(answer)]), *problems]
    return [head, *rows(_run_pairs(answer)), *problems, *command_lines(answer)]


def _run_pairs(answer: Mapping[str, Any]) -> list[tuple[str, str]]:
    live = answer["state"] in rules.LIVE
    return [
        ("run", f"{answer['run_id']} for {durations.format_duration(answer.get('seconds'))}{resumed_text(answer)}"),
        ("config", config_text(answer)),
        ("process", f"pid {answer['pid']}, {terminal_text(answer)}" if answer.get("pid") else ""),
        ("python", str(answer.get("python") or "")),
        ("torch", str(answer.get("torch") or "")),
        ("phase", str(answer.get("phase_text") or "") if live and answer.get("phase") != "training" else ""),
        ("step", step_text(answer)),
        ("left", left_text(answer)),
        ("speed", speed_text(answer)),
        ("workers", workers_text(answer)),
        ("checkpoint", checkpoint_text(answer.get("checkpoint"))),
        ("gpus", gpu_text(answer.get("gpus") or ())),
        ("disk", f"{disk.format_bytes(answer['disk']['free_bytes'])} free on {answer['disk']['mount']}"),
        (
            "built from",
            f"environment {answer['env_id']}, release {answer['release_id']}, cache {answer['cache_id'] or '-'}",
        ),
        ("last sign", f"{durations.format_duration(answer.get('seconds_since_sign'))} ago" if live else ""),
        *_activity_pairs(answer),
    ]


def _activity_pairs(answer: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return the jobs on the box and the holder of the operator lock."""
    holder = answer.get("held_by")
    jobs = [("job", job_text(job)) for job in answer.get("jobs") or ()]
    return [*jobs, ("locked by", holder_text(holder) if holder else "")]


def job_text(job: Mapping[str, Any]) -> str:
    """Return `prewarm-9c1f (warm compile cache 9c1f) for 42 s: cold: warmup 3/8 ...`."""
    newest = f": {job['line']}" if job["line"] else ""
    return f"{job['job_id']} ({job['title'] or 'a job'}) for {durations.format_duration(job['seconds'])}{newest}"


def holder_text(holder: Mapping[str, Any]) -> str:
    """Return `ann on laptop (pid 4711) since 2026-01-31 12:00:00 UTC (2 m 05 s) for: relaunch`."""
    since = f"{durations.format_timestamp(holder['since'])} UTC ({durations.format_duration(holder['seconds'])})"
    who = f"{holder['operator']} on {holder['host']} (pid {holder['pid']})"
    return f"{who} since {since} for: {holder['operation'] or 'a playbook'}"


def resumed_text(answer: Mapping[str, Any]) -> str:
    """Return `, resumed from step 40 of 20260131T120000Z-demo`; empty for a run that began at step 0."""
    return f", resumed from {answer['resumed_from']}" if answer.get("resumed_from") else ""


def terminal_text(answer: Mapping[str, Any]) -> str:
    """Return the tmux session of the run; a run continues without one."""
    if "attach" in dict(answer.get("commands") or {}):
        return f"session {answer.get('session')}"
    return f"its session {answer.get('session')} is gone; the run continues without it"


def config_text(answer: Mapping[str, Any]) -> str:
    """Return `demo.toml runtime.compile=true`."""
    return " ".join([str(answer.get("config_file") or ""), *(answer.get("overrides") or ())]).strip()


def left_text(answer: Mapping[str, Any]) -> str:
    """Return `2 h 07 m, until about 14:05 UTC`."""
    left = answer.get("seconds_left")
    if left is None:
        return ""
    return f"{durations.format_duration(left)}, until about {durations.format_timestamp(time.time() + left)[:16]} UTC"


def speed_text(answer: Mapping[str, Any]) -> str:
    """Return `812 tok/s (best 840, expected 800, best known 850 of 20260131T120000Z-demo)`."""
    if answer.get("tok_s") is None:
        return ""
    expected = f", expected {number(answer['expected_tok_s'])}" if answer.get("expected_tok_s") else ""
    known = answer.get("best_known")
    other = f", best known {number(known['tok_s'])} of {known['run_id']}" if known else ""
    return f"{number(answer['tok_s'])} tok/s (best {number(answer.get('best_tok_s'))}{expected}{other})"


def workers_text(answer: Mapping[str, Any]) -> str:
    """Return `queue 2, recompiles 0, skipped batches 0, allocator flat`; empty before the first step."""
    if not answer.get("step"):
        return ""
    allocator = {True: "flat", False: "grows", None: "-"}[answer.get("allocator_flat")]
    return (
        f"queue {number(answer.get('queue_depth'))}, recompiles {number(answer.get('recompiles'))}, "
        f"skipped batches {number(answer.get('skipped_batches'))}, allocator {allocator}"
    )


def checkpoint_text(value: Mapping[str, Any] | None) -> str:
    """Return `step 40, 7 s old, 1 kept`."""
    if not value:
        return "none yet"
    return f"step {value['step']}, {durations.format_duration(value['age_seconds'])} old, {value['kept']} kept"


def gpu_text(gpus: Sequence[Mapping[str, Any]]) -> str:
    """Return `0: 71/140 GiB 98 %  1: ...`."""
    parts = [
        f"{gpu['index']}: {number((gpu.get('used_mib') or 0) / 1024)}/{number((gpu.get('total_mib') or 0) / 1024)} GiB "
        f"{number(gpu.get('use_percent'))} %"
        for gpu in gpus
    ]
    return "  ".join(parts)


def command_lines(answer: Mapping[str, Any]) -> list[str]:
    """Return the commands for the operator's next step."""
    return rows((name, str(text)) for name, text in dict(answer.get("commands") or {}).items())
