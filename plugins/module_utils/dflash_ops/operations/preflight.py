"""What has to be true before a launch, all of it looked at, so that an operator reads every reason at once."""

from __future__ import annotations

import dataclasses
import socket
from collections.abc import Mapping
from typing import Any

from .. import inputs
from ..compile_cache import cache
from ..compile_cache.cache import Place
from ..core import disk, files, gpus, tmux
from ..core.errors import OpsError
from ..core.gpus import Survey
from ..core.paths import Layout
from ..drift import HEAL_ENVIRONMENT, HEAL_RELEASE
from ..monitor import failures
from ..monitor.failures import problem
from ..run import launch, run_processes, secrets_file, trainer_command
from ..run.trainer_command import Selection

SPARE_BYTES = 2 * disk.GIB


@dataclasses.dataclass(frozen=True)
class Findings:
    """What the looks gave.

    Args:
        record: facts that join run.json.
        problems: reasons not to launch.
        place: which compile cache the run needs; None when it could not be worked out.
        cache: how warm that is.
    """

    record: dict[str, Any]
    problems: list[dict[str, str]]
    place: Place | None
    cache: cache.Look | None


def look(
    layout: Layout,
    selection: Selection,
    *,
    session: str,
    secrets: Mapping[str, str] | None = None,
    survey: Survey | None = None,
    drift: list[str] | None = None,
    code: list[str] | None = None,
    replacing: bool = False,
) -> Findings:
    """Look at everything a launch depends on.

    Args:
        layout: the box.
        selection: what shall run.
        session: tmux session name.
        secrets: what will be placed; None: what lies there already.
        survey: the GPUs, when they were asked for already.
        drift: differences between the environment and its record.
        code: differences between the release and its record.
        replacing: the run that lives will be stopped first, so that it lives and what its GPUs hold is no reason.

    Raises:
        OpsError: environment, release or configuration are missing or refused: nothing else can be looked at then.
    """
    resolved = trainer_command.resolved(layout, selection)
    found = survey or gpus.survey()
    problems = [problem("environment-drift", text, HEAL_ENVIRONMENT) for text in drift or ()]
    problems += [problem("release-changed", text, HEAL_RELEASE) for text in code or ()]
    problems += [
        problem("inputs-changed", text, "put the recorded files back, or -e training_inputs_accept=true")
        for text in inputs.find_problems(layout, resolved)
    ]
    problems += [] if replacing else _living(layout)
    problems += _session(layout, session)
    problems += _gpus(layout, selection, resolved["needs"], found, replacing=replacing)
    problems += _space(layout, resolved)
    names = sorted(secrets if secrets is not None else secrets_file.read(layout))
    problems += [problem("secret-missing", text, "") for text in secrets_file.missing(resolved["config"], names)]
    where, warm = _cache(layout, selection, resolved, found)
    return Findings(
        record=facts(layout, selection, resolved, found, where, warm), problems=problems, place=where, cache=warm
    )


def _living(layout: Layout) -> list[dict[str, str]]:
    try:
        launch.refuse_living(layout)
    except OpsError as error:
        return [problem("run-lives", error.message, error.remedy)]
    return []


def _session(layout: Layout, name: str) -> list[dict[str, str]]:
    """Refuse a session of our name that no launch of ours started; one of an ended run is no obstacle."""
    try:
        host = launch.server(layout)
        found = host.find(tmux.check_name(name))
    except OpsError as error:
        return [problem("tmux", error.message, error.remedy)]
    if found is None or found.run_id:
        return []
    refusal = host.taken(found)
    return [problem("session-taken", refusal.message, refusal.remedy)]


def _gpus(
    layout: Layout, selection: Selection, needs: Mapping[str, Any], found: Survey, *, replacing: bool
) -> list[dict[str, str]]:
    used = gpus.indices(needs)
    if not used:
        return []
    short = gpus.count_problem(found, used)
    if short:
        return [problem("too-few-gpus", short, "change target.devices and drafter.devices, or give the box those GPUs")]
    own = {process.pid for processes in run_processes.all_living(layout).values() for process in processes}
    held = gpus.foreign_memory(found, used, own_pids=own)
    if held:
        return [problem("gpu-held", text, "end it, or choose other devices") for text in held]
    if own and replacing:  # their memory is full: an allocation proves something after the stop only
        return []
    return [_named_gpu_problem(text) for text in gpus.probe_allocation(layout, selection.env_id, used)]


def _named_gpu_problem(text: str) -> dict[str, str]:
    """Give a failed allocation its catalogue name: a missing device node first, else what its message says."""
    if "nvidia-uvm" in text:
        return problem("uvm-missing", text, failures.known("uvm-missing").remedy)
    named = failures.match([text])
    return problem(named[-1].failure.name, text, named[-1].failure.remedy) if named else problem("gpu-allocation", text)


def _space(layout: Layout, resolved: Mapping[str, Any]) -> list[dict[str, str]]:
    """Look at the mount of the checkpoints: what it keeps at once, and room to write one more."""
    one = int(resolved["needs"].get("checkpoint_bytes") or 0)
    keep = int(dict(resolved["config"].get("checkpoint") or {}).get("keep") or 1)
    try:
        disk.require(
            layout.runs,
            one * (keep + 2) + SPARE_BYTES,
            what=f"this run ({keep} checkpoints, the best one, one more being written, of {disk.human(one)} each)",
            remedy="playbooks/prune.yml, a smaller checkpoint.keep, or another dflash_workspace",
        )
    except OpsError as error:
        return [problem("disk-short", error.message, error.remedy)]
    return []


def _cache(
    layout: Layout, selection: Selection, resolved: Mapping[str, Any], found: Survey
) -> tuple[Place | None, cache.Look | None]:
    try:
        where = cache.place(layout, selection, resolved, found)
    except OpsError:  # the GPUs cannot be named: told as a problem of the GPUs
        return None, None
    return where, cache.look(layout, where)


def facts(
    layout: Layout,
    selection: Selection,
    resolved: Mapping[str, Any],
    found: Survey,
    where: Place | None,
    warm: cache.Look | None,
) -> dict[str, Any]:
    """Return what run.json says beside the launch itself."""
    env = files.read_json(layout.env(selection.env_id) / "env.json") or {}
    release = files.read_json(layout.release(selection.release_id) / "release.json") or {}
    used = gpus.indices(resolved["needs"])
    return {
        "host": socket.gethostname(),
        "config": resolved["config"],
        "needs": resolved["needs"],
        "gpus": [gpu.name for gpu in found.gpus if gpu.index in used],
        "driver": found.gpus[0].driver if found.gpus else None,
        "hardware": where.hardware if where else None,
        "lock_sha256": env.get("lock_sha256"),
        "packages": packages_of(env),
        "inputs": inputs.fingerprints(layout, resolved),
        "tree_hash": release.get("tree_hash"),
        "commit": release.get("commit"),
        "release_dirty": "+dirty" in selection.release_id,
        "cache_state": warm.state if warm else "unknown",
        "shape_id": where.shape_id if where else "",
        "trainer_folder": str(trainer_command.trainer_folder(layout, selection.release_id)),
    }


def packages_of(env: Mapping[str, Any]) -> dict[str, str]:
    """Return package name to version from env.json."""
    return {str(row["name"]): str(row["version"]) for row in env.get("packages") or ()}
