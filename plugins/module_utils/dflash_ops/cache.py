"""The compile cache: what it is named after, whether it is warm and whole, and how it is made and proved."""

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import getpass
import hashlib
import json
import os
import platform
import re
import shutil
import subprocess
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from . import failures, files, gpus, jobs, living, space, trainer_command
from .errors import OpsError
from .jobs import Progress
from .paths import Layout
from .trainer_command import Selection

RECORD = "cache.json"
NEEDED_BYTES = 2 * space.GIB
LINE = re.compile(r"warmup (\d+)/(\d+) ")
NOT_SHAPES = {
    "target": (),
    "drafter": ("init_from",),
    "objective": (),
    "data": ("path", "eval_path", "seed", "prefetch"),
    "runtime": ("queue_depth", "nan_limit", "seed"),
}
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

    @property
    def job_id(self) -> str:
        return f"prewarm-{self.cache_id}-{self.shape_id}"


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


def place(layout: Layout, selection: Selection, resolved: Mapping[str, Any], found: gpus.Survey) -> Place:
    """Name the cache for this selection on this box."""
    wanted = int(resolved["needs"].get("gpus") or 0)
    hardware = gpus.model(found) if wanted else cpu_model()
    if wanted and not hardware:
        raise OpsError(gpus.count_problem(found, wanted), remedy="status.yml shows what the box sees")
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


def read_record(folder: Path) -> dict[str, Any]:
    """Return cache.json; empty when there is none or it is damaged itself."""
    value = files.read_json(folder / RECORD)
    return value if isinstance(value, dict) and isinstance(value.get("files"), dict) else {}


def look(layout: Layout, where: Place) -> Look:
    """Tell how warm the cache is, comparing every recorded file with its checksum."""
    if not where.compiles:
        return Look("warm", "this configuration compiles nothing", proof={"misses": 0})
    folder = layout.cache(where.cache_id)
    record = read_record(folder)
    if not record and not has_files(folder):
        return Look("cold", f"nothing is compiled yet for {where.hardware}")
    if folder.stat().st_uid != os.getuid():
        return Look("foreign", f"{folder} belongs to uid {folder.stat().st_uid}, and this is uid {os.getuid()}")
    if not record:
        return Look("partial", "its files were never proved by a second process")
    bad = tuple(damaged(folder, record["files"]))
    proof = dict(record.get("shapes", {}).get(where.shape_id) or {})
    size = sum(int(row[0]) for row in record["files"].values())
    if bad:
        return Look("damaged", f"{len(bad)} files are not what the proof recorded, such as {bad[0]}", bad, proof, size)
    if not proof:
        return Look("partial", "the configuration or the code changed, and its shapes were not proved yet", bytes=size)
    return Look("warm", f"proved at {proof.get('proved_at')}: {proof.get('misses')} misses", proof=proof, bytes=size)


def has_files(folder: Path) -> bool:
    return folder.is_dir() and any(True for _ in kept_files(folder))


def kept_files(folder: Path) -> Iterator[Path]:
    """Yield the files that hold something: no locks, no half-written ones, not the record."""
    for path in files.walk_files(folder):
        name = path.name
        if path.is_symlink() or name == RECORD or name.endswith((".lock", ".tmp")) or "locks" in path.parts:
            continue
        yield path


def manifest(folder: Path) -> dict[str, list[Any]]:
    """Return `{relative path: [bytes, sha256]}`."""
    return {
        path.relative_to(folder).as_posix(): [path.stat().st_size, files.file_sha256(path)]
        for path in kept_files(folder)
    }


def damaged(folder: Path, listed: Mapping[str, Any]) -> Iterator[str]:
    """Yield the recorded files that are gone, have another size, or other bytes."""
    for name, (size, digest) in listed.items():
        path = folder / name
        try:
            if path.stat().st_size != size or files.file_sha256(path) != digest:
                yield name
        except OSError:
            yield name


def prewarm(
    layout: Layout, selection: Selection, where: Place, progress: Progress, *, wipe: bool = False
) -> dict[str, Any]:
    """Make the cache warm for `selection` and prove it by a process of its own.

    A second caller waits for the first, then finds it warm. Files that are not what the record says are dropped and
    made again. When a process fails while it reads what is there, the cache is set aside once and made anew.

    Raises:
        OpsError: no space, or the warm-up fails from an empty cache, or a second process still compiles.
    """
    space.require(
        layout.caches,
        NEEDED_BYTES,
        what="the compile cache",
        remedy="free space (prune.yml) or put dflash_root on a larger mount",
    )
    with holding(layout, where.cache_id, progress):
        folder = layout.cache(where.cache_id)
        undo_broken_wipe(folder)
        before = look(layout, where)
        if before.warm and not wipe:
            progress.say(f"cache {where.cache_id} is warm: {before.reason}")
            return {"state": "warm", "changed": False, "cache_id": where.cache_id, "proof": dict(before.proof)}
        if wipe:
            return _replacing(folder, lambda: _make(layout, selection, where, progress, cold_before=True))
        for name in before.damaged:
            (folder / name).unlink(missing_ok=True)
            progress.say(f"dropped {name}: it is damaged")
        cold = not has_files(folder)
        try:
            return _make(layout, selection, where, progress, cold_before=cold)
        except OpsError as error:
            if cold:
                raise
            aside = folder.with_name(f"{folder.name}.damaged-{int(time.time())}")
            progress.say(
                f"the cache as it was does not work ({error.message}); set aside as {aside.name}, made anew once"
            )
            os.rename(folder, aside)
            return _make(layout, selection, where, progress, cold_before=True)


def undo_broken_wipe(folder: Path) -> None:
    """Put the old cache back when a wipe was killed before the new one was proved."""
    old = _old(folder)
    if old.is_dir():
        if read_record(folder):
            shutil.rmtree(old)
        else:
            shutil.rmtree(folder, ignore_errors=True)
            os.rename(old, folder)


def _old(folder: Path) -> Path:
    return folder.with_name(f"{folder.name}.before-wipe")


def _replacing(folder: Path, make: Any) -> dict[str, Any]:
    """Call `make` on an empty folder; the old one goes only when that worked, and comes back when it did not."""
    if folder.is_dir():
        os.rename(folder, _old(folder))
    try:
        made: dict[str, Any] = make()
    except BaseException:
        if _old(folder).is_dir():
            shutil.rmtree(folder, ignore_errors=True)
            os.rename(_old(folder), folder)
        raise
    shutil.rmtree(_old(folder), ignore_errors=True)
    return made


@contextlib.contextmanager
def holding(layout: Layout, cache_id: str, progress: Progress) -> Iterator[None]:
    """Be the only one who makes this cache."""
    layout.caches.mkdir(parents=True, exist_ok=True)
    handle = os.open(layout.caches / f".{cache_id}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            progress.say(f"another prewarm works on cache {cache_id}; waiting for it")
            fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


def _make(
    layout: Layout, selection: Selection, where: Place, progress: Progress, *, cold_before: bool
) -> dict[str, Any]:
    """Warm up, then let a second process judge; write cache.json only after that."""
    folder = layout.cache(where.cache_id)
    folder.mkdir(parents=True, exist_ok=True)
    first = warm_up(layout, selection, folder, progress, name="cold" if cold_before else "again")
    if first["misses"] == 0 and (not cold_before or not has_files(folder)):
        proof, filled = first, None
    else:
        progress.say(
            f"compiled in {first['seconds']:.1f} s ({first['misses']} misses); a second process has to find all of it"
        )
        proof, filled = warm_up(layout, selection, folder, progress, name="proof"), first
    if proof["misses"]:
        raise OpsError(
            f"cache {where.cache_id} is not warm: a second process had {proof['misses']} misses ({_counters(proof)}).",
            remedy="look for `Bypassing FX Graph Cache` in the job's log; the shapes must not depend on the process",
        )
    record = _record(layout, selection, where, folder, proof=proof, filled=filled, cold=cold_before)
    files.write_json(folder / RECORD, record)
    shape = record["shapes"][where.shape_id]
    progress.say(
        f"cache {where.cache_id} is warm: cold {_seconds(shape['cold_seconds'])}, warm {shape['warm_seconds']:.1f} s, "
        f"0 misses, {space.human(sum(row[0] for row in record['files'].values()))}"
    )
    return {"state": "warm", "changed": True, "cache_id": where.cache_id, "proof": shape}


def _seconds(value: float | None) -> str:
    return f"{value:.1f} s" if value is not None else "made elsewhere"


def _counters(report: Mapping[str, Any]) -> str:
    return ", ".join(f"{name} {value}" for name, value in dict(report.get("counters") or {}).items())


def _record(
    layout: Layout,
    selection: Selection,
    where: Place,
    folder: Path,
    *,
    proof: Mapping[str, Any],
    filled: Mapping[str, Any] | None,
    cold: bool,
) -> dict[str, Any]:
    """Return the new cache.json: earlier shapes stay covered, since entries are addressed by content."""
    old = read_record(folder)
    earlier = dict(old.get("shapes", {}).get(where.shape_id) or {})
    shape = {
        "config": selection.config,
        "overrides": list(selection.overrides),
        "release_id": selection.release_id,
        "cold_seconds": filled["seconds"] if filled and cold else earlier.get("cold_seconds"),
        "warm_seconds": proof["seconds"],
        "load_seconds": proof.get("load_seconds"),
        "misses": proof["misses"],
        "counters": dict(proof.get("counters") or {}),
        "bypassed": int(dict(proof.get("counters") or {}).get("fxgraph_cache_bypass") or 0),
        "covered": [{key: row.get(key) for key in ("device", "worker", "bucket")} for row in proof.get("shapes") or ()],
        "torch": proof.get("torch"),
        "proved_at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
    }
    return {
        "cache_id": where.cache_id,
        "env_id": where.env_id,
        "hardware": where.hardware,
        "user": getpass.getuser(),
        "uid": os.getuid(),
        "shapes": {**dict(old.get("shapes") or {}), where.shape_id: shape},
        "files": manifest(folder),
    }


def warm_up(layout: Layout, selection: Selection, folder: Path, progress: Progress, *, name: str) -> dict[str, Any]:
    """Run the trainer's warm-up once in a process of its own; return its report.

    Raises:
        OpsError: it fails, with the failure named from its output.
    """
    report = folder / f".report-{name}.tmp"
    report.unlink(missing_ok=True)
    layout.tmp.mkdir(mode=0o700, exist_ok=True)
    argv = trainer_command.command(layout, selection, "warmup", "--cache-dir", str(folder), "--report", str(report))
    values = trainer_command.environment(layout, selection, cache=folder)
    values |= {key: os.environ[key] for key in (jobs.JOB_MARK,) if key in os.environ}
    progress.say(f"{name}: starting the warm-up")
    tail: list[str] = []
    child = subprocess.Popen(
        argv,
        env=values,
        cwd=trainer_command.trainer_folder(layout, selection.release_id),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
    )
    try:
        assert child.stdout is not None
        for line in child.stdout:
            tail = [*tail[-200:], line.rstrip()]
            match = LINE.match(line)
            if match:
                progress.say(f"{name}: {line.strip()}", done=int(match.group(1)), total=int(match.group(2)))
            else:
                print(line.rstrip(), flush=True)
        rc = child.wait()
    finally:
        if child.poll() is None:
            child.kill()
            child.wait()
    value = files.read_json(report)
    report.unlink(missing_ok=True)
    if rc != 0 or not isinstance(value, dict) or not value.get("ok"):
        told = failures.explain("\n".join(tail))[0]
        raise OpsError(
            f"the warm-up ({name}) ended with rc {rc}: {told['name']}: {told['message']}", remedy=told["remedy"]
        )
    return value


def refuse_beside_a_run(layout: Layout, now: Look, *, wipe: bool) -> None:
    """Refuse to compile beside a training run: both would share GPUs, and a wipe would pull its files away.

    Raises:
        OpsError: a run lives and there is something to do.
    """
    alive = living.all_living(layout)
    if not alive or (now.warm and not wipe):
        return
    run_id = sorted(alive)[-1]
    if wipe:
        raise OpsError(
            f"compile_cache_wipe is true while run {run_id} lives and uses the cache.",
            remedy="stop it first. A wipe is rarely needed: entries are addressed by content, so a changed torch, code "
            "or shape never reads a stale one, and damaged files are found and made again by themselves",
        )
    raise OpsError(
        f"the compile cache is {now.state} ({now.reason}), and run {run_id} lives on the same devices.",
        remedy="stop it first (playbooks/stop.yml), or use relaunch.yml, which stops, prewarms and launches",
    )
