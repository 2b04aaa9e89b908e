"""How a run stands, told from its record and /proc; never from a terminal pane and never by guessing."""

from __future__ import annotations

import dataclasses
import json
import shlex
import signal
import time
from collections.abc import Sequence
from typing import Any

from ..core import disk, files, gpus, processes
from ..core.errors import OpsError
from ..core.paths import Layout
from ..run import checkpoints, launch, metrics, run_processes, runs
from . import failures
from .failures import problem

STALL_SECONDS = 300.0
WRITE_GRACE = 2.0  # seconds between the end of the trainer and its exit.json
LOG_BYTES = 262144
LIVE = ("running", "stalled")
TROUBLE = ("failed", "killed", "lost", "stalled", "unknown")  # states that somebody has to act upon
DISK_LEAST = 5 * disk.GIB


@dataclasses.dataclass(frozen=True)
class Verdict:
    """The state of a run.

    Args:
        state: running, stalled, finished, stopped, failed, killed, lost, not running, or unknown.
        detail: one sentence.
        rc: exit code of an ended run.
        signal: number of the signal that ended it.
    """

    state: str
    detail: str = ""
    rc: int | None = None
    signal: int | None = None


def verdict(run: runs.Run, *, stall_seconds: float = STALL_SECONDS, grace: float = WRITE_GRACE) -> Verdict:
    """Tell how `run` stands."""
    deadline = time.monotonic() + grace
    while True:
        main = run_processes.main_process(run)
        if main is not None:
            reason = stall_reason(run, main, seconds=stall_seconds)
            return Verdict("stalled", reason) if reason else Verdict("running", phase_text(run))
        ended = run.read("exit.json")
        if ended:
            return _ended(run, ended)
        if time.monotonic() >= deadline or not _same_boot(run):
            return _without_record(run)
        time.sleep(0.1)


def _same_boot(run: runs.Run) -> bool:
    return run.record.get("boot_id") in (None, processes.boot_id())


def _ended(run: runs.Run, ended: dict[str, Any]) -> Verdict:
    rc, number = int(ended.get("rc", 1)), ended.get("signal")
    if ended.get("shutdown"):
        return _shut_down(run, rc, number)
    if number:
        name = signal_name(int(number))
        if run.read("stop.json").get("forced"):
            return Verdict(
                "stopped", f"stop had to end it with {name}, without a checkpoint of that moment", rc, number
            )
        return Verdict("killed", f"the trainer was killed by signal {number} ({name})", rc, number)
    if rc != 0:
        failure = run.read("failure.json")
        text = f": {failure.get('name')}: {failure.get('message')}" if failure else ""
        return Verdict("failed", f"the trainer ended with rc {rc}{text}", rc)
    if run.read("state.json").get("phase") == "stopped":
        return Verdict("stopped", "it was told to stop and left after a checkpoint", rc)
    return Verdict("finished", "it came to its end", rc)


def _shut_down(run: runs.Run, rc: int, number: int | None) -> Verdict:
    """The box went down under the run, which its wrapper could still write down."""
    if rc == 0 and run.read("state.json").get("phase") == "finished":
        return Verdict("finished", "it came to its end while the box shut down", rc)
    if rc == 0:
        return Verdict("stopped", "the box was shut down while it trained; it left after a checkpoint", rc)
    how = f"signal {number} ({signal_name(number)})" if number else f"rc {rc}"
    return Verdict("lost", f"the box was shut down while it trained (the trainer ended with {how})", rc, number)


def _without_record(run: runs.Run) -> Verdict:
    if not _same_boot(run):
        return Verdict("lost", "the box was restarted while it trained")
    return Verdict("lost", "the trainer and the script that writes down its end are both gone (both were killed)")


def signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def phase_text(run: runs.Run) -> str:
    """Return where the trainer says it is."""
    state = run.read("state.json")
    if not state:
        return "starting"
    part = f" {state['done']}/{state['total']}" if state.get("total") else ""
    if state.get("phase") == "training":  # its detail is the newest step, which is shown in full elsewhere
        return f"training{part}"
    return f"{state.get('phase', '?')}{part} {state.get('detail', '')}".strip()


def last_sign(run: runs.Run) -> float:
    """Return when the run last gave a sign of life (epoch seconds): its state, its metrics, or its log."""
    times = [float(run.read("state.json").get("updated_at") or 0), float(run.record.get("started_at") or 0)]
    for path in (run.metrics, run.log):
        try:
            times.append(path.stat().st_mtime)
        except OSError:
            continue
    return max(times)


def stall_reason(run: runs.Run, main: processes.Process, *, seconds: float) -> str:
    """Say why a live process does not get on; empty when it does."""
    fields = processes.stat_fields(main.pid)
    if fields and fields[0] in "Tt":
        return f"process {main.pid} is suspended (state {fields[0]}); send it SIGCONT"
    silent = time.time() - last_sign(run)
    return f"no step and no line for {silent:.0f} s (limit {seconds:g} s)" if silent > seconds else ""


def snapshot(
    layout: Layout, *, run_id: str = "", stall_seconds: float = STALL_SECONDS, ask_gpus: bool = True
) -> dict[str, Any]:
    """Return everything the status screen shows; `ok` says whether somebody has to act."""
    try:
        run = runs.chosen(layout, run_id)
        found = gpus.survey() if ask_gpus else gpus.Survey(state="none")
        return _of_run(layout, run, found, stall_seconds) if run else _nothing(layout, found)
    except OpsError as error:
        return unknown(str(error))
    except OSError as error:
        return unknown(f"{type(error).__name__}: {error}")


def unknown(reason: str, remedy: str = "reach the box first; nothing is said about its run") -> dict[str, Any]:
    """Return the answer for a box that could not be asked: no statement about any run."""
    return {
        "ok": False,
        "state": "unknown",
        "detail": f"could not find out: {reason}",
        "run_id": "",
        "pid": None,
        "problems": [problem("could-not-find-out", reason, remedy)],
    }


def _nothing(layout: Layout, found: gpus.Survey) -> dict[str, Any]:
    known = runs.run_ids(layout)
    detail = f"no run is current; {len(known)} earlier ones are kept" if known else "nothing was ever launched here"
    problems = [
        problem("leftovers", f"processes of run {run_id} still live", "playbooks/stop.yml -e run=" + run_id)
        for run_id in run_processes.all_living(layout)
    ]
    return {
        "ok": not problems,
        "state": "not running",
        "detail": detail,
        "run_id": "",
        "pid": None,
        "gpus": _gpu_rows(found),
        "problems": problems,
    }


def _of_run(layout: Layout, run: runs.Run, found: gpus.Survey, stall_seconds: float) -> dict[str, Any]:
    now = time.time()
    rows = metrics.read_metrics(run.metrics)
    said = verdict(run, stall_seconds=_patience(rows, stall_seconds))
    main = run_processes.main_process(run)
    last, expected = rows[-1] if rows else {}, dict(run.record.get("expected") or {})
    pace = metrics.speed(rows, window=runs.speed_window(run))
    state = run.read("state.json")
    ended = run.read("exit.json")
    answer = {
        "ok": True,
        "state": said.state,
        "detail": said.detail,
        "rc": said.rc,
        "signal": said.signal,
        "run_id": run.run_id,
        "label": run.record.get("label"),
        "config_file": run.record.get("config_file"),
        "overrides": list(run.record.get("overrides") or ()),
        "pid": main.pid if main else None,
        "start_ticks": main.start_ticks if main else None,
        "session": runs.session_of(run),
        "started_at": run.record.get("started_at"),
        "seconds": round(float(ended.get("finished_at") or now) - float(run.record.get("started_at") or now)),
        "phase": state.get("phase"),
        "phase_text": phase_text(run),
        "phases": state.get("phases") or [],
        "step": last.get("step", state.get("step")),
        "total_steps": runs.total_steps(run),
        "seconds_left": _seconds_left(run, said, rows, now),
        "epoch": last.get("epoch"),
        "loss": last.get("loss"),
        "accept_len": last.get("accept_len"),
        "lr": last.get("lr"),
        "tok_s": pace.now,
        "best_tok_s": pace.best,
        "expected_tok_s": expected.get("tok_s") or None,
        "tolerance": expected.get("tolerance"),
        "steps_seen": len(rows),
        "queue_depth": last.get("queue_depth"),
        "recompiles": last.get("recompiles"),
        "skipped_batches": last.get("skipped_batches"),
        "allocator_flat": metrics.allocator_flat(rows),
        "seconds_since_sign": round(now - last_sign(run)),
        "checkpoint": _checkpoint(run, now),
        "resumed_from": run.record.get("resume_from") or None,
        "goes_on_from": runs.goes_on_from(run),
        "env_id": run.record.get("env_id"),
        "release_id": run.record.get("release_id"),
        "cache_id": run.record.get("cache_id"),
        "gpus": _gpu_rows(found),
        "disk": {"mount": str(disk.mount_of(run.folder)), "free_bytes": disk.free_bytes(run.folder)},
        "uploads_failed": last.get("uploads_failed"),
        "log": str(run.log),
        "folder": str(run.folder),
        "commands": commands(layout, run, said.state),
    }
    if main is not None:
        answer["python"], answer["torch"] = real_files(main)
    answer["problems"] = _problems(layout, run, said, answer, rows, found)
    answer["ok"] = not answer["problems"]
    return answer


def _seconds_left(run: runs.Run, said: Verdict, rows: Sequence[dict[str, Any]], now: float) -> int | None:
    """Return how long a run that gets on still takes; None when that is not known."""
    left = metrics.seconds_left(rows, runs.total_steps(run), now=now) if said.state == "running" else None
    return None if left is None else round(left)


def _patience(rows: Sequence[dict[str, Any]], seconds: float) -> float:
    """Return the silence that means a stall: never less than twenty usual steps."""
    return max(seconds, 20 * (metrics.step_seconds(rows) or 0.0))


def _checkpoint(run: runs.Run, now: float) -> dict[str, Any] | None:
    found = checkpoints.complete(run.checkpoints)
    if not found:
        return None
    newest = found[-1]
    try:
        age = now - (newest.path / checkpoints.INDEX).stat().st_mtime
    except OSError:  # rotated away between the two looks
        return None
    return {"step": newest.step, "age_seconds": round(age), "path": str(newest.path), "kept": len(found)}


def _damaged_checkpoints(run: runs.Run) -> list[dict[str, str]]:
    """Name checkpoints that cannot be resumed from; a newer one of a live run may still be in the making."""
    bad = [f"{item.path.name}: {item.damage}" for item in checkpoints.look(run.checkpoints) if item.damage]
    bad += [f"{path.name} was put aside" for path in checkpoints.put_aside(run.checkpoints)]
    if not bad:
        return []
    return [
        problem(
            "checkpoint-damaged", "; ".join(bad), "nothing to do: the last complete one is used; prune.yml removes it"
        )
    ]


def _gpu_rows(found: gpus.Survey) -> list[dict[str, Any]]:
    return [
        {
            "index": gpu.index,
            "name": gpu.name,
            "used_mib": gpu.used_mib,
            "total_mib": gpu.total_mib,
            "use_percent": gpu.use_percent,
        }
        for gpu in found.gpus
    ]


def real_files(main: processes.Process) -> tuple[str, str]:
    """Return the interpreter a process was started as and the torch library it has mapped (empty: none yet)."""
    argv = run_processes.command_line(main.pid)
    torch = next(iter(run_processes.torch_libraries(main.pid)), "")
    return (argv[0] if argv else ""), torch


def commands(layout: Layout, run: runs.Run, state: str) -> dict[str, str]:
    """Return what a person types next, exactly; a run that is over has no terminal and nothing to stop."""
    read = {
        "log": f"tail -F {shlex.quote(str(run.log))}",
        "status": ".venv/bin/ansible-playbook playbooks/status.yml",
    }
    if state not in LIVE:
        return {**read, "start": start_command(run)}
    return {**_attach(layout, run), **read, "stop": ".venv/bin/ansible-playbook playbooks/stop.yml"}


def start_command(run: runs.Run) -> str:
    """Return what starts a run's configuration again."""
    return f".venv/bin/ansible-playbook relaunch.yml{as_launched(run)}"


def as_launched(run: runs.Run) -> str:
    """Return the words that start this very configuration again, where it was changed for one run."""
    overrides = run.record.get("overrides")
    if not overrides:
        return ""
    typed = {"dflash_config": run.record.get("config_file"), "dflash_overrides": overrides}
    return f" -e {shlex.quote(json.dumps(typed))} -e training_run_label={run.record.get('label')}"


def _attach(layout: Layout, run: runs.Run) -> dict[str, str]:
    """Return how to see the run's terminal; nothing when its tmux session is gone, which ends no run."""
    try:
        host = launch.server(layout)
        session = host.find(runs.session_of(run))
    except OpsError as error:
        return {"attach": f"(no tmux: {error.message})"}
    return {"attach": host.attach_command(session.name)} if session and session.run_id == run.run_id else {}


def _problems(
    layout: Layout,
    run: runs.Run,
    said: Verdict,
    answer: dict[str, Any],
    rows: Sequence[dict[str, Any]],
    found: gpus.Survey,
) -> list[dict[str, str]]:
    listed = []
    if said.state in ("failed", "killed", "lost"):
        listed += death(run, said)
    if said.state == "stalled":
        listed.append(problem("stalled", said.detail, f"read {run.log}; stop.yml ends it, relaunch.yml goes on"))
    listed += _damaged_checkpoints(run)
    if said.state not in LIVE:
        listed += _leftovers(run)
    else:
        listed += _gpu_problems(run, found)
        listed += live_problems(answer, rows)
    if answer["disk"]["free_bytes"] < DISK_LEAST and said.state in LIVE:
        free = disk.format_bytes(answer["disk"]["free_bytes"])
        listed.append(
            problem(
                "disk-nearly-full",
                f"{answer['disk']['mount']} has {free} free",
                "playbooks/prune.yml frees what nothing needs",
            )
        )
    return listed


def death(run: runs.Run, said: Verdict) -> list[dict[str, str]]:
    """Name why a run ended badly."""
    name = {"failed": "failed", "killed": "killed", "lost": "lost"}[said.state]
    told = run.read("failure.json")
    first = problem(name, said.detail, str(told.get("remedy") or _again(run)))
    before, after = run.record.get("oom_kills"), run_processes.cgroup_oom_kills()
    if said.signal == signal.SIGKILL and before is not None and after is not None and after > before:
        failure = failures.known("oom-killed")
        return [first, problem(failure.name, failure.cause, failure.remedy)]
    found = failures.match(_own_log(run).splitlines())
    if found:
        return [first, *(item.as_problem() for item in found)]
    if told or said.state != "failed":
        return [first]
    return [first, *failures.explain(_own_log(run), where=str(run.log))]


def _again(run: runs.Run) -> str:
    steps = runs.checkpoint_steps(run)
    typed = "relaunch.yml" + " with this run's dflash_overrides" * bool(run.record.get("overrides"))
    return f"{typed} goes on from step {steps[-1]}" if steps else f"{typed}; it had no complete checkpoint yet"


def _own_log(run: runs.Run) -> str:
    return files.read_tail(run.log, LOG_BYTES)


def _leftovers(run: runs.Run) -> list[dict[str, str]]:
    left = run_processes.of_run(run)
    if not left:
        return []
    pids = ", ".join(str(process.pid) for process in left)
    return [
        problem(
            "leftovers",
            f"the trainer is gone, and processes of its run live on: pid {pids}",
            "playbooks/stop.yml ends them",
        )
    ]


def _gpu_problems(run: runs.Run, found: gpus.Survey) -> list[dict[str, str]]:
    used = gpus.indices(dict(run.record.get("needs") or {}))
    if not used:
        return []
    listed = [problem("gpu-trouble", text, "look at the host's kernel log (Xid)") for text in found.problems]
    short = gpus.count_problem(found, used)
    return [problem("gpu-lost", short, failures.known("gpu-lost").remedy), *listed] if short else listed


def live_problems(answer: dict[str, Any], rows: Sequence[dict[str, Any]]) -> list[dict[str, str]]:
    """Return what is wrong with a run that lives: recompiles, skipped batches, a growing allocator, slowness, NaN."""
    listed = []
    if answer.get("recompiles"):
        listed.append(
            problem(
                "recompile-after-warmup",
                f"{answer['recompiles']} recompiles after the warm-up",
                failures.known("recompile-after-warmup").remedy,
            )
        )
    if answer.get("skipped_batches"):
        listed.append(
            problem(
                "nan-loss",
                f"{answer['skipped_batches']} batches were skipped because they were not finite",
                failures.known("nan-loss").remedy,
            )
        )
    if answer.get("allocator_flat") is False:
        listed.append(
            problem(
                "allocator-grows",
                "the GPU allocator still asks the device for memory",
                "let it settle; if it goes on, the shapes vary: look at data.buckets",
            )
        )
    if answer.get("uploads_failed"):
        listed.append(
            problem(
                "uploads-fail",
                f"{answer['uploads_failed']} uploads of checkpoints failed; training goes on",
                "check the object store; local checkpoints are kept",
            )
        )
    if checkpoints_fail(answer, rows):
        listed.append(
            problem(
                "checkpoints-fail",
                f"{rows[-1]['checkpoint_failures']} checkpoints could not be written; training goes on, and the last "
                "good one is kept",
                f"read {answer.get('log')} for the reason; playbooks/prune.yml frees space",
            )
        )
    expected, pace = answer.get("expected_tok_s"), answer.get("tok_s")
    return listed if not (expected and pace and len(rows) >= metrics.WINDOW) else [*listed, *slow(answer)]


def checkpoints_fail(answer: dict[str, Any], rows: Sequence[dict[str, Any]]) -> bool:
    """Tell whether a checkpoint failed and none was written since: the count rose after the newest one on the disk."""
    newest = int((answer.get("checkpoint") or {}).get("step") or 0)
    nothing: dict[str, Any] = {}
    before = next((row for row in reversed(rows) if int(row["step"]) <= newest), nothing)
    last = rows[-1] if rows else nothing
    return int(last.get("checkpoint_failures") or 0) > int(before.get("checkpoint_failures") or 0)


def slow(answer: dict[str, Any], *, tolerance: float = 0.8) -> list[dict[str, str]]:
    """Return the problem `slow` when the speed of the last steps stays under what was expected."""
    wanted = float(answer["expected_tok_s"]) * float(answer.get("tolerance") or tolerance)
    if float(answer["tok_s"]) >= wanted:
        return []
    return [
        problem(
            "slow",
            f"{answer['tok_s']:.0f} tok/s over the last steps; {answer['expected_tok_s']:.0f} expected, "
            f"{wanted:.0f} tolerated",
            "playbooks/compare.yml names what differs from another run",
        )
    ]
