"""Status snapshot of a run: the data behind the status screen, the health check and the notification."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from ..core import disk, gpus, processes
from ..core.errors import OpsError
from ..core.paths import Layout
from ..run import checkpoints, metrics, run_processes, runs
from . import commands, problems, rules, verdict
from .failures import problem


def snapshot(
    layout: Layout, *, run_id: str = "", stall_seconds: float = rules.STALL_SECONDS, query_gpus: bool = True
) -> dict[str, Any]:
    """Return the data of the status screen; `ok` is False when an operator has to act.

    Args:
        layout: the box.
        run_id: the run; empty for the current one.
        stall_seconds: seconds of silence that count as a stall.
        query_gpus: run nvidia-smi.
    """
    try:
        run = runs.select(layout, run_id)
        found = gpus.survey() if query_gpus else gpus.Survey(state="none")
        return _of_run(layout, run, found, stall_seconds) if run else _without_run(layout, found)
    except OpsError as error:
        return unknown(str(error))
    except OSError as error:
        return unknown(f"{type(error).__name__}: {error}")


def unknown(reason: str, remedy: str = "make the box reachable, then run the same command again") -> dict[str, Any]:
    """Return the answer for a box whose state could not be read; it makes no statement about a run."""
    return {
        "ok": False,
        "state": "unknown",
        "detail": f"the state could not be read: {reason}",
        "run_id": "",
        "pid": None,
        "problems": [problem("state-unreadable", reason, remedy)],
    }


def _without_run(layout: Layout, found: gpus.Survey) -> dict[str, Any]:
    earlier = runs.run_ids(layout)
    leftovers = problems.of_other_runs(layout)
    return {
        "ok": not leftovers,
        "state": "not running",
        "detail": f"no run is current; {len(earlier)} earlier runs are kept" if earlier else "no run was launched yet",
        "run_id": "",
        "pid": None,
        "gpus": _gpu_rows(found),
        "problems": leftovers,
    }


def _of_run(layout: Layout, run: runs.Run, found: gpus.Survey, stall_seconds: float) -> dict[str, Any]:
    now = time.time()
    rows = metrics.read_metrics(run.metrics)
    current = verdict.read(run, stall_seconds=stall_seconds)
    main = run_processes.main_process(run)
    answer = {
        "ok": True,
        "state": current.state,
        "detail": current.detail,
        "rc": current.rc,
        "signal": current.signal,
        **_identity(run, now),
        "pid": main.pid if main else None,
        "start_ticks": main.start_ticks if main else None,
        **_progress(run, rows),
        "seconds_left": _seconds_left(run, current, rows, now),
        "seconds_since_sign": round(now - verdict.last_sign(run)),
        "checkpoint": _newest_checkpoint(run, now),
        "gpus": _gpu_rows(found),
        "disk": {"mount": str(disk.mount_of(run.folder)), "free_bytes": disk.free_bytes(run.folder)},
        "commands": commands.next_commands(layout, run, current.state),
    }
    if main is not None:
        answer["python"], answer["torch"] = files_in_use(main)
    answer["problems"] = problems.of_run(layout, run, current, answer, rows, found)
    answer["ok"] = not answer["problems"]
    return answer


def _identity(run: runs.Run, now: float) -> dict[str, Any]:
    """Return the part of the snapshot that comes from the run's record."""
    record = run.record
    started_at, ended = record.get("started_at"), run.read("exit.json")
    return {
        "run_id": run.run_id,
        "label": record.get("label"),
        "config_file": record.get("config_file"),
        "overrides": list(record.get("overrides") or ()),
        "session": runs.session_of(run),
        "started_at": started_at,
        "seconds": round(float(ended.get("finished_at") or now) - float(started_at or now)),
        "resumed_from": runs.resumed_from(run) or None,
        "env_id": record.get("env_id"),
        "release_id": record.get("release_id"),
        "cache_id": record.get("cache_id"),
        "log": str(run.log),
        "folder": str(run.folder),
    }


def _progress(run: runs.Run, rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return the part of the snapshot that comes from the trainer's state and metrics."""
    state, last = run.read("state.json"), rows[-1] if rows else {}
    window, expected = runs.speed_window(run), dict(run.record.get("expected") or {})
    speed = metrics.speed(rows, window=window)
    return {
        "phase": state.get("phase"),
        "phase_text": verdict.phase_text(run),
        "phases": state.get("phases") or [],
        "step": last.get("step", state.get("step")),
        "total_steps": runs.total_steps(run),
        "epoch": last.get("epoch"),
        "loss": last.get("loss"),
        "accept_len": last.get("accept_len"),
        "lr": last.get("lr"),
        "tok_s": speed.now,
        "best_tok_s": speed.best,
        "expected_tok_s": expected.get("tok_s") or None,
        "tolerance": expected.get("tolerance"),
        "speed_steps": window,
        "steps_seen": len(rows),
        "queue_depth": last.get("queue_depth"),
        "recompiles": last.get("recompiles"),
        "skipped_batches": last.get("skipped_batches"),
        "allocator_flat": metrics.allocator_flat(rows),
        "uploads_failed": last.get("uploads_failed"),
    }


def _seconds_left(
    run: runs.Run, current: verdict.Verdict, rows: Sequence[dict[str, Any]], now: float
) -> int | None:
    """Return the estimated seconds to the last step; None when the run makes no progress."""
    left = metrics.seconds_left(rows, runs.total_steps(run), now=now) if current.state == "running" else None
    return None if left is None else round(left)


def _newest_checkpoint(run: runs.Run, now: float) -> dict[str, Any] | None:
    found = checkpoints.complete(run.checkpoints)
    if not found:
        return None
    newest = found[-1]
    try:
        age = now - (newest.path / checkpoints.INDEX).stat().st_mtime
    except OSError:  # removed by the trainer's rotation since it was listed
        return None
    return {"step": newest.step, "age_seconds": round(age), "path": str(newest.path), "kept": len(found)}


def _gpu_rows(found: gpus.Survey) -> list[dict[str, Any]]:
    keys = ("index", "name", "used_mib", "total_mib", "use_percent")
    return [{key: getattr(gpu, key) for key in keys} for gpu in found.gpus]


def files_in_use(main: processes.Process) -> tuple[str, str]:
    """Return the interpreter of a process and the torch library it has mapped; empty before torch is imported."""
    argv = run_processes.command_line(main.pid)
    torch = next(iter(run_processes.torch_libraries(main.pid)), "")
    return (argv[0] if argv else ""), torch
