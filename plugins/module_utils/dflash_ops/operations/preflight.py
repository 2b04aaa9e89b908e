"""Preflight checks of a launch; all of them run, so that an operator sees every problem at once."""

from __future__ import annotations

import dataclasses
import socket
from collections.abc import Mapping
from typing import Any

from .. import inputs, resolved_config
from ..compile_cache import cache
from ..compile_cache.cache import CacheKey
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
    """Results of the preflight checks.

    Args:
        record: facts that become part of run.json.
        problems: reasons against the launch.
        place: compile cache that the run needs; None when the GPUs cannot be identified.
        cache: state of that compile cache.
    """

    record: dict[str, Any]
    problems: list[dict[str, str]]
    place: CacheKey | None
    cache: cache.CacheState | None


def check(
    layout: Layout,
    selection: Selection,
    *,
    session: str,
    secrets: Mapping[str, str] | None = None,
    survey: Survey | None = None,
    drift: list[str] | None = None,
    code: list[str] | None = None,
    replacing: bool = False,
    store: bool = True,
) -> Findings:
    """Check everything that a launch depends on.

    Args:
        layout: the box.
        selection: environment, release and configuration of the launch.
        session: tmux session name.
        secrets: secrets that the launch will write; None: those on the box.
        survey: state of the GPUs; None: query them.
        drift: differences between the environment and its record.
        code: differences between the release and its record.
        replacing: the running run will be stopped first, so that neither it nor its GPU memory is a problem.
        store: keep the resolved configuration for the next call; False in check mode.

    Raises:
        OpsError: environment, release or configuration is missing or rejected; no other check is possible then.
    """
    resolved = resolved_config.resolve(layout, selection, store=store)
    found = survey or gpus.survey()
    problems = [problem("environment-drift", text, HEAL_ENVIRONMENT) for text in drift or ()]
    problems += [problem("release-changed", text, HEAL_RELEASE) for text in code or ()]
    problems += [
        problem("inputs-changed", text, "put the recorded files back, or -e training_inputs_accept=true")
        for text in inputs.find_problems(layout, resolved)
    ]
    problems += [] if replacing else _running(layout)
    problems += _session(layout, session)
    problems += _gpus(layout, selection, resolved["needs"], found, replacing=replacing)
    problems += _space(layout, resolved)
    names = sorted(secrets if secrets is not None else secrets_file.read(layout))
    problems += [problem("secret-missing", text, "") for text in secrets_file.missing(resolved["config"], names)]
    where, warm = _cache(layout, selection, resolved, found)
    return Findings(
        record=facts(layout, selection, resolved, found, where, warm), problems=problems, place=where, cache=warm
    )


def _running(layout: Layout) -> list[dict[str, str]]:
    try:
        launch.require_nothing_running(layout)
    except OpsError as error:
        return [problem("already-running", error.message, error.remedy)]
    return []


def _session(layout: Layout, name: str) -> list[dict[str, str]]:
    """Report a tmux session of this name that does not belong to a run."""
    try:
        host = launch.tmux_server(layout)
        found = host.find(tmux.check_name(name))
    except OpsError as error:
        return [problem("tmux", error.message, error.remedy)]
    if found is None or found.run_id:
        return []
    refusal = host.name_conflict(found)
    return [problem("session-taken", refusal.message, refusal.remedy)]


def _gpus(
    layout: Layout, selection: Selection, needs: Mapping[str, Any], found: Survey, *, replacing: bool
) -> list[dict[str, str]]:
    used = gpus.indices(needs)
    if not used:
        return []
    short = gpus.count_problem(found, used)
    if short:
        remedy = "change target.devices and drafter.devices, or add those GPUs to the box"
        return [problem("too-few-gpus", short, remedy)]
    own = {process.pid for processes in run_processes.running_processes(layout).values() for process in processes}
    held = gpus.foreign_memory(found, used, own_pids=own)
    if held:
        return [problem("gpu-held", text, "end that process, or select other devices") for text in held]
    if own and replacing:  # their memory is full: an allocation is meaningful only after the stop
        return []
    return [_named_gpu_problem(text) for text in gpus.probe_allocation(layout, selection.env_id, used)]


def _named_gpu_problem(text: str) -> dict[str, str]:
    """Return a failed allocation under its name in the failure catalogue; a missing device node comes first."""
    if "nvidia-uvm" in text:
        return problem("uvm-missing", text, failures.known("uvm-missing").remedy)
    named = failures.match([text])
    return problem(named[-1].failure.name, text, named[-1].failure.remedy) if named else problem("gpu-allocation", text)


def _space(layout: Layout, resolved: Mapping[str, Any]) -> list[dict[str, str]]:
    """Check that the mount of the checkpoints has space for all kept checkpoints and one being written."""
    one = int(resolved["needs"].get("checkpoint_bytes") or 0)
    keep = int(dict(resolved["config"].get("checkpoint") or {}).get("keep") or 1)
    try:
        disk.require_space(
            layout.runs,
            one * (keep + 2) + SPARE_BYTES,
            what=f"this run ({keep} checkpoints, the best one, one more being written, "
            f"of {disk.format_bytes(one)} each)",
            remedy="playbooks/prune.yml, a smaller checkpoint.keep, or another dflash_workspace",
        )
    except OpsError as error:
        return [problem("disk-short", error.message, error.remedy)]
    return []


def _cache(
    layout: Layout, selection: Selection, resolved: Mapping[str, Any], found: Survey
) -> tuple[CacheKey | None, cache.CacheState | None]:
    try:
        where = cache.cache_key(layout, selection, resolved, found)
    except OpsError:  # the GPUs cannot be identified; the GPU check reports it
        return None, None
    return where, cache.inspect(layout, where)


def facts(
    layout: Layout,
    selection: Selection,
    resolved: Mapping[str, Any],
    found: Survey,
    where: CacheKey | None,
    warm: cache.CacheState | None,
) -> dict[str, Any]:
    """Return the facts about environment, release, inputs and hardware for run.json."""
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
    """Return the versions of the packages in env.json, by name."""
    return {str(row["name"]): str(row["version"]) for row in env.get("packages") or ()}
