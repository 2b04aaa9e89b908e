"""Name and state of a compile cache."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import platform
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..core import files, gpus
from ..core.errors import OpsError
from ..core.paths import Layout
from ..run import run_processes, trainer_command
from ..run.trainer_command import Selection
from . import manifest

JOB_PREFIX = "prewarm-"
SHAPE_INDEPENDENT = {
    "target": (),
    "drafter": ("init_from",),
    "objective": (),
    "data": ("path", "eval_path", "seed", "prefetch"),
    "runtime": ("queue_depth", "nan_limit", "seed"),
}
WIPE_ADVICE = (
    "A wipe is rarely needed: entries are addressed by content, so a changed torch, code or shape never reads a stale "
    "one, and damaged files are detected and rebuilt automatically"
)
ISA_FLAGS = ("avx2", "avx512f", "avx512_bf16", "avx512_vnni", "amx_tile", "amx_bf16", "asimd", "sve", "bf16")


@dataclasses.dataclass(frozen=True)
class CacheKey:
    """Cache that a configuration uses, and its entry in that cache.

    Args:
        cache_id: hash of the environment and the hardware.
        shape_id: hash of everything that decides what is compiled: code, shapes, dtypes, devices.
        hardware: GPU model, or CPU model with its instruction sets, as text.
        env_id: the environment.
        compiles: whether this configuration compiles or tunes anything at all.
    """

    cache_id: str
    shape_id: str
    hardware: str
    env_id: str
    compiles: bool = True

    def job_id(self, *options: str) -> str:
        """Return the name of the prewarm job; jobs with other options get another name and wait for the cache lock."""
        return "-".join([f"{job_prefix(self.cache_id)}{self.shape_id}", *options])


@dataclasses.dataclass(frozen=True)
class CacheState:
    """State of a cache for one configuration.

    Args:
        state: warm, cold (empty), partial (files that were not checked for these shapes), damaged, or foreign.
        reason: one sentence.
        damaged: files that differ from the record.
        cache_check: entry of these shapes in cache.json, written by the cache check.
        bytes: size of the recorded files.
    """

    state: str
    reason: str
    damaged: tuple[str, ...] = ()
    cache_check: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    bytes: int = 0

    @property
    def warm(self) -> bool:
        """Return whether a start finds every shape compiled."""
        return self.state == "warm"

    def as_dict(self) -> dict[str, Any]:
        """Return the fields of the module's result."""
        return {
            "state": self.state,
            "reason": self.reason,
            "damaged": list(self.damaged),
            "bytes": self.bytes,
            "cache_check": {name: value for name, value in self.cache_check.items() if name != "config"},
        }


def cpu_model() -> str:
    """Return the CPU's name and the instruction sets that generated code depends on."""
    text = Path("/proc/cpuinfo").read_text(errors="replace")
    name = re.search(r"^(?:model name|CPU part)\s*:\s*(.+)$", text, re.MULTILINE)
    flags = re.search(r"^(?:flags|Features)\s*:\s*(.+)$", text, re.MULTILINE)
    present = set(flags.group(1).split()) if flags else set()
    sets = " ".join(flag for flag in ISA_FLAGS if flag in present)
    return f"{name.group(1).strip() if name else platform.processor() or 'unknown'} {platform.machine()} [{sets}]"


def job_prefix(cache_id: str) -> str:
    """Return the common prefix of the names of all jobs on a cache."""
    return f"{JOB_PREFIX}{cache_id}-"


def cache_key(layout: Layout, selection: Selection, resolved: Mapping[str, Any], found: gpus.Survey) -> CacheKey:
    """Return the key of the cache for a selection on this box.

    Args:
        layout: the box.
        selection: environment, release and configuration.
        resolved: the configuration as the trainer resolves it, with its needs.
        found: the box's GPUs.

    Raises:
        OpsError: the configuration needs GPUs and none was found.
    """
    gpu_count = int(resolved["needs"].get("gpus") or 0)
    hardware = gpus.model(found) if gpu_count else cpu_model()
    if gpu_count and not hardware:
        problem = gpus.count_problem(found, gpus.indices(resolved["needs"]))
        raise OpsError(problem, remedy="playbooks/status.yml shows the GPUs of the box")
    trainer = trainer_command.trainer_folder(layout, selection.release_id)
    relevant = {
        section: {name: value for name, value in _section(resolved, section).items() if name not in ignored}
        for section, ignored in SHAPE_INDEPENDENT.items()
    }
    text = json.dumps([relevant, dict(selection.extra)], sort_keys=True, default=str).replace(str(trainer), "")
    return CacheKey(
        cache_id=_short_hash(f"{selection.env_id} {hardware}"),
        hardware=hardware,
        env_id=selection.env_id,
        compiles=compiles(resolved),
        shape_id=_short_hash(text + files.tree_hash(trainer / "dflash_trainer")),
    )


def _section(resolved: Mapping[str, Any], name: str) -> dict[str, Any]:
    return dict(dict(resolved.get("config") or {}).get(name) or {})


def compiles(resolved: Mapping[str, Any]) -> bool:
    """Return whether a resolved configuration or a run's record compiles or tunes anything; on GPUs it always does."""
    gpus_needed = bool(dict(resolved.get("needs") or {}).get("gpus"))
    return gpus_needed or bool(_section(resolved, "runtime").get("compile", True))


def recorded_key(record: Mapping[str, Any]) -> CacheKey:
    """Return the cache key in a run's record."""
    return CacheKey(
        cache_id=str(record.get("cache_id") or ""),
        shape_id=str(record.get("shape_id") or ""),
        hardware=str(record.get("hardware") or ""),
        env_id=str(record.get("env_id") or ""),
        compiles=compiles(record),
    )


def _short_hash(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def inspect(layout: Layout, key: CacheKey) -> CacheState:
    """Return the state of the cache, after comparing the checksum of every recorded file."""
    if not key.compiles:
        return CacheState("warm", "this configuration compiles nothing", cache_check={"misses": 0})
    folder = layout.cache(key.cache_id)
    record = manifest.read_record(folder)
    if not record and not manifest.has_files(folder):
        return CacheState("cold", f"nothing is compiled yet for {key.hardware}")
    foreign = manifest.first_foreign(folder, os.getuid())
    if foreign is not None:
        owner = foreign.lstat().st_uid
        return CacheState("foreign", f"{foreign} belongs to uid {owner}, and this is uid {os.getuid()}")
    if not record:
        return CacheState("partial", "its files were never checked by a second process")
    return _recorded_state(folder, record, key)


def _recorded_state(folder: Path, record: Mapping[str, Any], key: CacheKey) -> CacheState:
    """Return the state of a cache that has a record."""
    damaged = tuple(manifest.damaged_files(folder, record["files"]))
    check = dict(record["shapes"].get(key.shape_id) or {})
    size = sum(int(row[0]) for row in record["files"].values())
    if damaged:
        reason = f"{len(damaged)} files differ from the record, such as {damaged[0]}"
        return CacheState("damaged", reason, damaged, check, size)
    if record.get("folder", str(folder)) != str(folder):
        reason = f"it was checked in {record['folder']}, and compiled kernels depend on the path"
        return CacheState("partial", reason, bytes=size)
    if not check:
        reason = "the configuration or the code changed, and its shapes were not checked yet"
        return CacheState("partial", reason, bytes=size)
    reason = f"checked at {check.get('checked_at')} with {check.get('misses')} misses"
    return CacheState("warm", reason, cache_check=check, bytes=size)


def require_owned(state: CacheState, folder: Path) -> None:
    """Require that no file belongs to another user, because neither user's trainer could replace the other's files.

    Raises:
        OpsError: naming a file and both users.
    """
    if state.state == "foreign":
        raise OpsError(
            f"The compile cache is foreign: {state.reason}.",
            remedy=f"run as the user who created it, or change the owner: chown -R {os.getuid()} {folder}",
        )


def require_no_run(layout: Layout, state: CacheState, *, wipe: bool) -> None:
    """Require that no run is training if the cache has to change: it shares the GPUs and uses the cache's files.

    Raises:
        OpsError: a run is running and the cache is not warm or is to be wiped.
    """
    running = run_processes.running_processes(layout)
    if not running or (state.warm and not wipe):
        return
    run_id = sorted(running)[-1]
    if wipe:
        raise OpsError(
            f"compile_cache_wipe is true while run {run_id} is running and uses the cache.",
            remedy=f"stop it first. {WIPE_ADVICE}",
        )
    raise OpsError(
        f"The compile cache is {state.state} ({state.reason}), and run {run_id} is running on the same devices.",
        remedy="stop it first (playbooks/stop.yml), or use relaunch.yml, which stops, prewarms and launches",
    )
