"""The compile cache: what it is named after, and whether it is warm and whole."""

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
from . import contents

JOB_PREFIX = "prewarm-"
NOT_SHAPES = {
    "target": (),
    "drafter": ("init_from",),
    "objective": (),
    "data": ("path", "eval_path", "seed", "prefetch"),
    "runtime": ("queue_depth", "nan_limit", "seed"),
}
WIPE_IS_RARE = (
    "A wipe is rarely needed: entries are addressed by content, so a changed torch, code or shape never reads a stale "
    "one, and damaged files are found and made again by themselves"
)
ISA_FLAGS = ("avx2", "avx512f", "avx512_bf16", "avx512_vnni", "amx_tile", "amx_bf16", "asimd", "sve", "bf16")


@dataclasses.dataclass(frozen=True)
class Place:
    """Which cache and which part of it a configuration needs.

    Args:
        cache_id: hash of the environment and the hardware.
        shape_id: hash of all that decides what gets compiled: code, shapes, types, devices.
        hardware: GPU model, or CPU model with its instruction sets, in words.
        env_id: the environment.
        compiles: whether this configuration compiles or tunes anything at all.
    """

    cache_id: str
    shape_id: str
    hardware: str
    env_id: str
    compiles: bool = True

    def job_id(self, *words: str) -> str:
        """Name the work on this part; what is asked for beside it makes it other work, which waits for its turn."""
        return "-".join([f"{job_prefix(self.cache_id)}{self.shape_id}", *words])


@dataclasses.dataclass(frozen=True)
class Look:
    """How warm a cache is.

    Args:
        state: warm, cold (nothing there), partial (files without a proof for these shapes), damaged, or foreign.
        reason: one sentence.
        damaged: files that are not what the proof recorded.
        proof: what cache.json says of these shapes.
        bytes: size of the recorded files.
    """

    state: str
    reason: str
    damaged: tuple[str, ...] = ()
    proof: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    bytes: int = 0

    @property
    def warm(self) -> bool:
        return self.state == "warm"

    def as_dict(self) -> dict[str, Any]:
        return {
            "state": self.state,
            "reason": self.reason,
            "damaged": list(self.damaged),
            "bytes": self.bytes,
            "proof": {key: value for key, value in self.proof.items() if key not in ("config",)},
        }


def cpu_model() -> str:
    """Return the CPU's name and the instruction sets that generated code depends on."""
    text = Path("/proc/cpuinfo").read_text(errors="replace")
    name = re.search(r"^(?:model name|CPU part)\s*:\s*(.+)$", text, re.MULTILINE)
    flags = re.search(r"^(?:flags|Features)\s*:\s*(.+)$", text, re.MULTILINE)
    have = set(flags.group(1).split()) if flags else set()
    sets = " ".join(flag for flag in ISA_FLAGS if flag in have)
    return f"{name.group(1).strip() if name else platform.processor() or 'unknown'} {platform.machine()} [{sets}]"


def job_prefix(cache_id: str) -> str:
    """Return how the names of all work on a cache begin."""
    return f"{JOB_PREFIX}{cache_id}-"


def place(layout: Layout, selection: Selection, resolved: Mapping[str, Any], found: gpus.Survey) -> Place:
    """Name the cache for this selection on this box."""
    wanted = int(resolved["needs"].get("gpus") or 0)
    hardware = gpus.model(found) if wanted else cpu_model()
    if wanted and not hardware:
        short = gpus.count_problem(found, gpus.indices(resolved["needs"]))
        raise OpsError(short, remedy="status.yml shows what the box sees")
    trainer = trainer_command.trainer_folder(layout, selection.release_id)
    kept = {
        section: {key: value for key, value in dict(resolved["config"].get(section) or {}).items() if key not in skip}
        for section, skip in NOT_SHAPES.items()
    }
    told = json.dumps([kept, dict(selection.extra)], sort_keys=True, default=str).replace(str(trainer), "")
    return Place(
        cache_id=_short(f"{selection.env_id} {hardware}"),
        hardware=hardware,
        env_id=selection.env_id,
        compiles=compiles(resolved),
        shape_id=_short(told + files.tree_hash(trainer / "dflash_trainer")),
    )


def compiles(resolved: Mapping[str, Any]) -> bool:
    """Tell whether a resolved configuration (or a run's record) compiles or tunes anything: on GPUs always."""
    runtime = dict(dict(resolved.get("config") or {}).get("runtime") or {})
    return bool(dict(resolved.get("needs") or {}).get("gpus")) or bool(runtime.get("compile", True))


def place_of(record: Mapping[str, Any]) -> Place:
    """Return the cache that a run's record names."""
    return Place(
        cache_id=str(record.get("cache_id") or ""),
        shape_id=str(record.get("shape_id") or ""),
        hardware=str(record.get("hardware") or ""),
        env_id=str(record.get("env_id") or ""),
        compiles=compiles(record),
    )


def _short(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def look(layout: Layout, where: Place) -> Look:
    """Tell how warm the cache is, comparing every recorded file with its checksum."""
    if not where.compiles:
        return Look("warm", "this configuration compiles nothing", proof={"misses": 0})
    folder = layout.cache(where.cache_id)
    record = contents.read_record(folder)
    if not record and not contents.has_files(folder):
        return Look("cold", f"nothing is compiled yet for {where.hardware}")
    alien = contents.foreign(folder, os.getuid())
    if alien is not None:
        return Look("foreign", f"{alien} belongs to uid {alien.lstat().st_uid}, and this is uid {os.getuid()}")
    if not record:
        return Look("partial", "its files were never proved by a second process")
    bad = tuple(contents.damaged(folder, record["files"]))
    proof = dict(record.get("shapes", {}).get(where.shape_id) or {})
    size = sum(int(row[0]) for row in record["files"].values())
    if bad:
        return Look("damaged", f"{len(bad)} files are not what the proof recorded, such as {bad[0]}", bad, proof, size)
    if record.get("folder", str(folder)) != str(folder):
        return Look(
            "partial", f"it was proved in {record['folder']}, and compiled kernels depend on the path", bytes=size
        )
    if not proof:
        return Look("partial", "the configuration or the code changed, and its shapes were not proved yet", bytes=size)
    return Look("warm", f"proved at {proof.get('proved_at')}: {proof.get('misses')} misses", proof=proof, bytes=size)


def refuse_foreign(now: Look, folder: Path) -> None:
    """Refuse to work on what another user made: the trainer of either could not replace the other's files.

    Raises:
        OpsError: naming a file and both users.
    """
    if now.state == "foreign":
        raise OpsError(
            f"the compile cache is foreign: {now.reason}.",
            remedy=f"work as the user who made it, or give it to this one: chown -R {os.getuid()} {folder}",
        )


def refuse_beside_a_run(layout: Layout, now: Look, *, wipe: bool) -> None:
    """Refuse to compile beside a training run: both would share GPUs, and a wipe would pull its files away.

    Raises:
        OpsError: a run lives and there is something to do.
    """
    alive = run_processes.running_processes(layout)
    if not alive or (now.warm and not wipe):
        return
    run_id = sorted(alive)[-1]
    if wipe:
        raise OpsError(
            f"compile_cache_wipe is true while run {run_id} lives and uses the cache.",
            remedy=f"stop it first. {WIPE_IS_RARE}",
        )
    raise OpsError(
        f"the compile cache is {now.state} ({now.reason}), and run {run_id} lives on the same devices.",
        remedy="stop it first (playbooks/stop.yml), or use relaunch.yml, which stops, prewarms and launches",
    )
