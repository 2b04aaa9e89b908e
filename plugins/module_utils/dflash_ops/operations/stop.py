"""Stop a run: send SIGTERM, wait for its checkpoint, escalate to SIGKILL, and verify that nothing is left."""

from __future__ import annotations

import dataclasses
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ..core import files, gpus, processes
from ..core.errors import OpsError
from ..core.jobs import Progress
from ..core.paths import Layout
from ..core.processes import Process
from ..monitor import verdict
from ..run import launch, run_processes, runs

CHECKPOINT_SECONDS = 600.0
TERM_SECONDS = 10.0
KILL_SECONDS = 20.0
REPORT_SECONDS = 2.0
Report = Callable[[str], None]


@dataclasses.dataclass(frozen=True)
class Leftovers:
    """Resources that a run still uses.

    Args:
        pids: processes of the run.
        gpu_pids: processes of the run that nvidia-smi still lists with memory.
        gpus: GPUs of the run whose memory is in use by no visible process.
        ports: TCP ports of the run that still have a listener.
    """

    pids: tuple[int, ...] = ()
    gpu_pids: tuple[int, ...] = ()
    gpus: tuple[int, ...] = ()
    ports: tuple[int, ...] = ()

    @property
    def empty(self) -> bool:
        """Return whether nothing is left."""
        return not (self.pids or self.gpu_pids or self.gpus or self.ports)

    def as_text(self) -> str:
        """Return the resources as one sentence."""
        parts = [
            ("process", self.pids),
            ("GPU memory of pid", self.gpu_pids),
            ("memory of a process that is not visible here, on GPU", self.gpus),
            ("port", self.ports),
        ]
        return "; ".join(f"{name} {', '.join(map(str, found))}" for name, found in parts if found) or "nothing"


def run_to_stop(layout: Layout, run_id: str = "") -> runs.Run | None:
    """Return the run to stop: the named run, else the current run, else the newest run that has processes."""
    if run_id:
        return runs.load(layout, run_id)
    found = run_processes.running_processes(layout)
    current = runs.current(layout)
    if current is not None and (current.run_id in found or not found):
        return current
    return runs.load(layout, sorted(found)[-1]) if found else None


def job(arguments: Mapping[str, Any], progress: Progress) -> dict[str, Any]:
    """Run the detached stop job, so that a dropped connection does not leave a run half stopped."""
    layout = Layout.of(arguments["root"], arguments["workspace"])
    run = runs.load(layout, str(arguments["run_id"]))
    return stop(
        layout,
        run,
        report=progress.say,
        immediately=bool(arguments.get("immediately")),
        seconds=float(arguments.get("timeout") or CHECKPOINT_SECONDS),
    )


def stop(
    layout: Layout,
    run: runs.Run,
    *,
    report: Report,
    immediately: bool = False,
    seconds: float = CHECKPOINT_SECONDS,
    term_seconds: float = TERM_SECONDS,
) -> dict[str, Any]:
    """Stop `run` and verify that nothing of it is left.

    Args:
        layout: the box.
        run: the run to stop.
        report: callback for live lines.
        immediately: skip the wait for a checkpoint.
        seconds: time limit for the trainer's checkpoint.
        term_seconds: time limit for other processes after SIGTERM.

    Returns:
        `{"run_id", "state", "detail", "forced", "checkpoint_step", "left"}`.

    Raises:
        OpsError: a resource of the run is still in use after SIGKILL.
    """
    before = run_processes.processes_of(run)
    ports = run_processes.listening_ports(process.pid for process in before)
    pids = {process.pid for process in before}
    main = run_processes.main_process(run)
    forced = False
    if main is not None:
        forced = not _wait_for_exit(run, main, report=report, seconds=0.0 if immediately else seconds)
    pids |= {process.pid for process in run_processes.processes_of(run)}
    if forced or run_processes.processes_of(run):
        files.write_json(run.folder / "stop.json", {"asked_at": time.time(), "forced": forced})
        _escalate(run, report=report, term_seconds=0.0 if immediately else term_seconds)
    ended = verdict.read(run)
    _end_session(layout, run)
    left, gpu_error = _find_leftovers(run, pids, set(ports))
    if not left.empty:
        raise OpsError(
            f"run {run.run_id} is stopped, but these resources are still in use: {left.as_text()}.",
            facts={"left": dataclasses.asdict(left)},
            remedy="a process in state D waits for a disk or driver; check ps, nvidia-smi and the kernel log, also on "
            "the Proxmox host",
        )
    steps = runs.checkpoint_steps(run)
    report(
        f"verified: run {run.run_id} has no process and no port left; its GPUs could not be queried: {gpu_error}"
        if gpu_error
        else f"verified: run {run.run_id} has no process, no GPU memory and no port left"
    )
    return {
        "run_id": run.run_id,
        "state": ended.state,
        "detail": ended.detail,
        "forced": forced,
        "checkpoint_step": steps[-1] if steps else None,
        "left": dataclasses.asdict(left),
    }


def _wait_for_exit(run: runs.Run, main: Process, *, report: Report, seconds: float) -> bool:
    """Send SIGTERM and wait for the trainer's checkpoint; return whether the trainer exited in time."""
    if seconds <= 0:
        return False
    report(f"SIGTERM to pid {main.pid}, which writes a checkpoint and exits (at most {seconds:g} s)")
    processes.send_signal([main], signal.SIGTERM)
    _wake([main])
    started = shown = time.monotonic()
    while time.monotonic() - started < seconds:
        if not processes.wait_for_exit([main], 0.2):
            report(f"pid {main.pid} exited after {time.monotonic() - started:.1f} s")
            return True
        if time.monotonic() - shown >= REPORT_SECONDS:
            shown = time.monotonic()
            report(f"waiting for the checkpoint: {verdict.phase_text(run)}, {shown - started:.0f} of {seconds:g} s")
    report(f"pid {main.pid} did not exit within {seconds:g} s")
    return False


def _wake(found: list[Process]) -> None:
    """Send SIGCONT: a suspended process does not handle SIGTERM."""
    processes.send_signal(found, signal.SIGCONT)


def _escalate(run: runs.Run, *, report: Report, term_seconds: float) -> None:
    """End every process of the run by SIGTERM, then SIGKILL, including children outside its session."""
    left = run_processes.processes_of(run)
    if left and term_seconds > 0:
        report(f"SIGTERM to {len(left)} processes of the run: {_pids(left)}")
        processes.send_signal(left, signal.SIGTERM)
        _wake(left)
        processes.wait_for_exit(left, term_seconds)
    deadline = time.monotonic() + KILL_SECONDS
    while (left := run_processes.processes_of(run)) and time.monotonic() < deadline:
        report(f"SIGKILL to {len(left)} processes of the run: {_pids(left)}")
        processes.send_signal(left, signal.SIGKILL)
        processes.wait_for_exit(left, 2.0)


def _pids(found: list[Process]) -> str:
    return ", ".join(str(process.pid) for process in found)


def _end_session(layout: Layout, run: runs.Run) -> None:
    """Close the tmux session if it belongs to this run."""
    host = launch.tmux_server(layout)
    found = host.find(runs.session_of(run))
    if found is not None and found.run_id == run.run_id:
        host.end(found)


def _find_leftovers(run: runs.Run, pids: set[int], ports: set[int]) -> tuple[Leftovers, str]:
    """Return the resources still in use, and why the GPUs could not be queried (empty without a GPU or an error).

    The kernel and the driver may need a few seconds to free processes, ports and GPU memory.
    """
    deadline = time.monotonic() + 5.0
    while True:
        running = tuple(process.pid for process in run_processes.processes_of(run))
        listening = tuple(sorted(ports & run_processes.open_ports()))
        if not (running or listening) or time.monotonic() > deadline:
            break
        time.sleep(0.2)
    used = gpus.indices(dict(run.record.get("needs") or {}))
    found = _settled(pids, used, seconds=max(0.0, deadline - time.monotonic())) if used else gpus.Survey(state="none")
    unseen = tuple(gpu.index for gpu in gpus.hidden_usage(found, used))
    left = Leftovers(running, _holding(found, pids), unseen, listening)
    return left, "; ".join(found.problems) if found.state == "unknown" else ""


def _settled(pids: set[int], used: Sequence[int], *, seconds: float) -> gpus.Survey:
    """Query the GPUs until the run's memory is free, or `seconds` have passed."""
    deadline = time.monotonic() + seconds
    while True:
        found = gpus.survey()
        if not (_holding(found, pids) or gpus.hidden_usage(found, used)) or time.monotonic() >= deadline:
            return found
        time.sleep(0.5)


def _holding(found: gpus.Survey, pids: set[int]) -> tuple[int, ...]:
    """Return those of `pids` that still use GPU memory."""
    return tuple(holder.pid for holder in found.holders if holder.pid in pids and processes.find(holder.pid))
