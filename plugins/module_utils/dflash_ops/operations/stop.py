"""Stop a run: ask it to checkpoint and leave, wait, escalate, and prove that nothing of it is left."""

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
SAY_SECONDS = 2.0
Say = Callable[[str], None]


@dataclasses.dataclass(frozen=True)
class Left:
    """What a run still holds; all empty is the proof that it is gone.

    Args:
        pids: its processes.
        gpu_pids: those among the run's processes that nvidia-smi still lists with memory.
        gpus: those of the run's GPUs whose memory is still in use while no process can be seen that holds it.
        ports: TCP ports it listened on that still have a listener.
    """

    pids: tuple[int, ...] = ()
    gpu_pids: tuple[int, ...] = ()
    gpus: tuple[int, ...] = ()
    ports: tuple[int, ...] = ()

    @property
    def nothing(self) -> bool:
        return not (self.pids or self.gpu_pids or self.gpus or self.ports)

    def as_text(self) -> str:
        parts = [
            ("process", self.pids),
            ("GPU memory of pid", self.gpu_pids),
            ("memory, of a process that cannot be seen from here, on GPU", self.gpus),
            ("port", self.ports),
        ]
        return "; ".join(f"{name} {', '.join(map(str, found))}" for name, found in parts if found) or "nothing"


def run_to_stop(layout: Layout, run_id: str = "") -> runs.Run | None:
    """Return the run that stop is about: the named one, else the current, else one that still has processes."""
    if run_id:
        return runs.load(layout, run_id)
    found = run_processes.all_living(layout)
    current = runs.current(layout)
    if current is not None and (current.run_id in found or not found):
        return current
    return runs.load(layout, sorted(found)[-1]) if found else None


def job(arguments: Mapping[str, Any], progress: Progress) -> dict[str, Any]:
    """Entry of the detached stop, so that a dropped connection does not leave a run half stopped."""
    layout = Layout.of(arguments["root"], arguments["workspace"])
    run = runs.load(layout, str(arguments["run_id"]))
    return stop(
        layout,
        run,
        say=progress.say,
        now=bool(arguments.get("immediately")),
        seconds=float(arguments.get("timeout") or CHECKPOINT_SECONDS),
    )


def stop(
    layout: Layout,
    run: runs.Run,
    *,
    say: Say,
    now: bool = False,
    seconds: float = CHECKPOINT_SECONDS,
    term_seconds: float = TERM_SECONDS,
) -> dict[str, Any]:
    """Stop `run` and prove it.

    Args:
        layout: the box.
        run: which.
        say: takes live lines.
        now: skip the wait for a checkpoint.
        seconds: how long the trainer may take to write its checkpoint.
        term_seconds: how long children may take after SIGTERM.

    Returns:
        `{"run_id", "state", "detail", "forced", "checkpoint_step", "left"}`.

    Raises:
        OpsError: something of the run survives SIGKILL.
    """
    before = run_processes.of_run(run)
    ports = run_processes.listening_ports(process.pid for process in before)
    pids = {process.pid for process in before}
    main = run_processes.main_process(run)
    forced = False
    if main is not None:
        forced = not _leave_by_itself(run, main, say=say, seconds=0.0 if now else seconds)
    pids |= {process.pid for process in run_processes.of_run(run)}
    if forced or run_processes.of_run(run):
        files.write_json(run.folder / "stop.json", {"asked_at": time.time(), "forced": forced})
        _escalate(run, say=say, term_seconds=0.0 if now else term_seconds)
    said = verdict.read(run)
    _end_session(layout, run)
    left, unasked = _prove(run, pids, set(ports))
    if not left.nothing:
        raise OpsError(
            f"run {run.run_id} left behind: {left.as_text()}.",
            facts={"left": dataclasses.asdict(left)},
            remedy="a process in state D waits for a disk or driver; look at ps, nvidia-smi and the kernel log, on the "
            "Proxmox host too",
        )
    steps = runs.checkpoint_steps(run)
    say(
        f"proved: no process, no port of run {run.run_id} is left; its GPUs could not be asked: {unasked}"
        if unasked
        else f"proved: no process, no GPU memory, no port of run {run.run_id} is left"
    )
    return {
        "run_id": run.run_id,
        "state": said.state,
        "detail": said.detail,
        "forced": forced,
        "checkpoint_step": steps[-1] if steps else None,
        "left": dataclasses.asdict(left),
    }


def _leave_by_itself(run: runs.Run, main: Process, *, say: Say, seconds: float) -> bool:
    """Send SIGTERM and wait for the trainer to write its checkpoint; tell whether it left in time."""
    if seconds <= 0:
        return False
    say(f"SIGTERM to pid {main.pid}: write a checkpoint and leave (at most {seconds:g} s)")
    processes.send([main], signal.SIGTERM)
    _wake([main])
    started = shown = time.monotonic()
    while time.monotonic() - started < seconds:
        if not processes.wait_gone([main], 0.2):
            say(f"pid {main.pid} left after {time.monotonic() - started:.1f} s")
            return True
        if time.monotonic() - shown >= SAY_SECONDS:
            shown = time.monotonic()
            say(f"waiting for the checkpoint: {verdict.phase_text(run)}, {shown - started:.0f} of {seconds:g} s")
    say(f"pid {main.pid} did not leave in {seconds:g} s")
    return False


def _wake(found: list[Process]) -> None:
    """A suspended process takes no SIGTERM; let it run."""
    processes.send(found, signal.SIGCONT)


def _escalate(run: runs.Run, *, say: Say, term_seconds: float) -> None:
    """End every process of the run: SIGTERM, then SIGKILL, also children that left the session meanwhile."""
    left = run_processes.of_run(run)
    if left and term_seconds > 0:
        say(f"SIGTERM to {len(left)} processes of the run: {_pids(left)}")
        processes.send(left, signal.SIGTERM)
        _wake(left)
        processes.wait_gone(left, term_seconds)
    deadline = time.monotonic() + KILL_SECONDS
    while (left := run_processes.of_run(run)) and time.monotonic() < deadline:
        say(f"SIGKILL to {len(left)} processes of the run: {_pids(left)}")
        processes.send(left, signal.SIGKILL)
        processes.wait_gone(left, 2.0)


def _pids(found: list[Process]) -> str:
    return ", ".join(str(process.pid) for process in found)


def _end_session(layout: Layout, run: runs.Run) -> None:
    """Close the run's tmux session, and only when it carries this run's mark."""
    host = launch.server(layout)
    found = host.find(runs.session_of(run))
    if found is not None and found.run_id == run.run_id:
        host.end(found)


def _prove(run: runs.Run, pids: set[int], ports: set[int]) -> tuple[Left, str]:
    """Look at processes, GPU memory and ports once more, after a moment that the kernel may need.

    Returns what is left, and why the GPUs could not be asked (empty: they were, or the run had none).
    """
    deadline = time.monotonic() + 5.0
    while True:
        alive = tuple(process.pid for process in run_processes.of_run(run))
        still = tuple(sorted(ports & run_processes.open_ports()))
        if not (alive or still) or time.monotonic() > deadline:
            break
        time.sleep(0.2)
    had = gpus.indices(dict(run.record.get("needs") or {}))
    found = _settled(pids, had, seconds=max(0.0, deadline - time.monotonic())) if had else gpus.Survey(state="none")
    left = Left(alive, _holding(found, pids), tuple(gpu.index for gpu in gpus.unseen(found, had)), still)
    return left, "; ".join(found.problems) if found.state == "unknown" else ""


def _settled(pids: set[int], had: Sequence[int], *, seconds: float) -> gpus.Survey:
    """Ask the GPUs until they are free; the driver may need a moment to give memory back."""
    deadline = time.monotonic() + seconds
    while True:
        found = gpus.survey()
        if not (_holding(found, pids) or gpus.unseen(found, had)) or time.monotonic() >= deadline:
            return found
        time.sleep(0.5)


def _holding(found: gpus.Survey, pids: set[int]) -> tuple[int, ...]:
    """Return which of `pids` still hold GPU memory."""
    return tuple(holder.pid for holder in found.holders if holder.pid in pids and processes.look(holder.pid))
