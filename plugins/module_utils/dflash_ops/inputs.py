"""Inputs of a run (dataset, evaluation set, target weights): presence, integrity and fingerprint.

The record of an input is `inputs/<hash of its path>.json`: size, time and SHA-256 of each file. The fast check compares
sizes and times and hashes only files that differ; the full check hashes everything.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import struct
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from .core import files, tree_manifest, truncate
from .core.errors import OpsError
from .core.jobs import Progress
from .core.paths import Layout
from .core.tree_manifest import Drift, Manifest

ENTRY = "inputs:record_job"
# Input name, and its key in the `needs` of a resolved configuration.
NEEDS = (("dataset", "data_path"), ("evaluation", "eval_path"), ("target", "target_path"))
ARROW_END = b"\xff\xff\xff\xff\x00\x00\x00\x00"
MAGIC = {".gguf": b"GGUF"}
SAFETENSORS_HEADER_LIMIT = 100 << 20


@dataclasses.dataclass(frozen=True)
class Input:
    """Dataset, evaluation set or target weights.

    Args:
        name: dataset, evaluation or target.
        path: folder or file.
    """

    name: str
    path: Path


@dataclasses.dataclass(frozen=True)
class InputStatus:
    """State of an input on the box.

    Args:
        item: the input.
        state: absent, damaged, new, recorded or changed.
        problems: one sentence for each damaged, missing or changed file.
        fingerprint: hash over its files; empty unless it is recorded and unchanged.
        size: total bytes of its files.
    """

    item: Input
    state: str
    problems: tuple[str, ...]
    fingerprint: str
    size: int

    def as_dict(self) -> dict[str, Any]:
        """Return the fields as the module reports them."""
        return {
            "path": str(self.item.path),
            "state": self.state,
            "problems": list(self.problems),
            "fingerprint": self.fingerprint,
            "bytes": self.size,
        }


def required_inputs(resolved: Mapping[str, Any]) -> list[Input]:
    """Return the inputs of a resolved configuration; random weights are not an input."""
    needs = resolved["needs"]
    paths = [(name, str(needs.get(key) or "")) for name, key in NEEDS]
    return [Input(name, Path(path)) for name, path in paths if path and not path.startswith("random:")]


def record_path(layout: Layout, path: Path) -> Path:
    """Return the path of an input's record."""
    return layout.root / "inputs" / f"{hashlib.sha256(str(path).encode()).hexdigest()[:16]}.json"


def file_stats(path: Path) -> dict[str, Any]:
    """Return the stat of each file of an input by relative name; the input may be a single file."""
    if path.is_file():
        return {path.name: path.stat()}
    return {name: (path / name).stat() for name in tree_manifest.scan(path) if (path / name).is_file()}


def base_folder(path: Path) -> Path:
    """Return the folder that the names of an input's files are relative to."""
    return path.parent if path.is_file() else path


def inspect(layout: Layout, item: Input, *, full: bool = False) -> InputStatus:
    """Return the state of an input; hash every file if `full`."""
    if not item.path.exists():
        return InputStatus(item, "absent", (f"{item.name}: {item.path} does not exist",), "", 0)
    now = file_stats(item.path)
    size = sum(stat.st_size for stat in now.values())
    damaged = damage(item.path, now)
    if damaged:
        return InputStatus(item, "damaged", tuple(f"{item.name}: {text}" for text in damaged), "", size)
    record = files.read_json(record_path(layout, item.path))
    if not record:
        return InputStatus(item, "new", (), "", size)
    drift = compare(item.path, now, record["files"], full=full)
    if drift:
        problems = tuple(f"{item.name}: {item.path}: {difference}" for difference in drift)
        return InputStatus(item, "changed", problems, "", size)
    return InputStatus(item, "recorded", (), record["fingerprint"], size)


def compare(path: Path, now: Mapping[str, Any], then: Manifest, *, full: bool) -> list[Drift]:
    """Return the differences from the record."""
    drift = [Drift("removed", name, "is missing") for name in then.keys() - now.keys()]
    drift += [Drift("added", name, "is new") for name in now.keys() - then.keys()]
    candidates = [
        name
        for name in now.keys() & then.keys()
        if full or [now[name].st_size, now[name].st_mtime_ns] != then[name][:2]
    ]
    hashes = tree_manifest.digests(base_folder(path), candidates)
    drift += [
        Drift(
            "edited",
            name,
            f"{then[name][0]} bytes when it was fingerprinted, {now[name].st_size} now, "
            f"sha256 {hashes[name][:12]} instead of {then[name][2][:12]}",
        )
        for name in candidates
        if hashes[name] != then[name][2]
    ]
    return sorted(drift, key=lambda difference: (difference.kind, difference.path))


def damage(path: Path, now: Mapping[str, Any]) -> list[str]:
    """Return one sentence per damaged file (truncated Arrow, safetensors or GGUF) and missing shard."""
    top = base_folder(path)
    problems = [f"{top / name}: {text}" for name in sorted(now) if (text := file_damage(top / name, now[name].st_size))]
    dataset = files.read_json(path / "state.json") if path.is_dir() else None
    shards = [row["filename"] for row in (dataset or {}).get("_data_files", []) if isinstance(row, dict)]
    index = files.read_json(path / "model.safetensors.index.json") if path.is_dir() else None
    shards += sorted(set((index or {}).get("weight_map", {}).values()))
    return problems + [f"{top / name} is listed but missing" for name in shards if name not in now]


def file_damage(path: Path, size: int) -> str:
    """Return the damage of a file as text; empty if its header and size are consistent."""
    if path.suffix == ".safetensors":
        return safetensors_damage(path, size)
    if path.suffix == ".arrow":
        return (
            ""
            if last_bytes(path, len(ARROW_END)) == ARROW_END
            else f"is truncated: no end-of-stream marker after {size} bytes"
        )
    magic = MAGIC.get(path.suffix)
    if magic:
        with path.open("rb") as stream:
            return "" if stream.read(len(magic)) == magic else f"is not a {path.suffix[1:].upper()} file"
    return ""


def last_bytes(path: Path, count: int) -> bytes:
    """Return at most `count` bytes from the end of a file."""
    with path.open("rb") as stream:
        stream.seek(max(0, path.stat().st_size - count))
        return stream.read()


def safetensors_damage(path: Path, size: int) -> str:
    """Compare a safetensors file's size with its header; return the damage as text, or empty."""
    with path.open("rb") as stream:
        head = stream.read(8)
        length = struct.unpack("<Q", head)[0] if len(head) == 8 else SAFETENSORS_HEADER_LIMIT + 1
        if length > SAFETENSORS_HEADER_LIMIT:
            return "has no safetensors header"
        try:
            header = json.loads(stream.read(length))
            ends = [row["data_offsets"][1] for name, row in header.items() if name != "__metadata__"]
        except (ValueError, KeyError, TypeError):
            return "has a broken safetensors header"
    expected = 8 + length + max(ends, default=0)
    return "" if size == expected else f"has {size} bytes, its header says {expected}"


def record(layout: Layout, item: Input) -> str:
    """Hash an input's files, write its record, and return its fingerprint."""
    now = file_stats(item.path)
    hashes = tree_manifest.digests(base_folder(item.path), now)
    manifest: Manifest = {name: [now[name].st_size, now[name].st_mtime_ns, hashes[name]] for name in sorted(now)}
    fingerprint = tree_manifest.fingerprint(manifest)
    files.write_json(
        record_path(layout, item.path),
        {
            "name": item.name,
            "path": str(item.path),
            "fingerprint": fingerprint,
            "recorded_at": time.time(),
            "files": manifest,
        },
    )
    return fingerprint


def record_job(arguments: dict[str, Any], progress: Progress) -> dict[str, Any]:
    """Run the job that fingerprints inputs.

    Args:
        arguments: root, workspace, inputs as [[name, path], ...].
        progress: receives the progress lines.
    """
    layout = Layout.of(arguments["root"], arguments["workspace"])
    items = [Input(name, Path(path)) for name, path in arguments["inputs"]]
    for number, item in enumerate(items, start=1):
        size = sum(stat.st_size for stat in file_stats(item.path).values())
        progress.say(f"fingerprinting {item.name}: {size >> 20} MB in {item.path}", done=number, total=len(items))
        record(layout, item)
    return {"changed": True}


def find_problems(layout: Layout, resolved: Mapping[str, Any], *, full: bool = False) -> list[str]:
    """Return the problems of a configuration's inputs: fast before a launch, `full` for verify.yml."""
    statuses = [inspect(layout, item, full=full) for item in required_inputs(resolved)]
    return [text for status in statuses for text in status.problems]


def fingerprints(layout: Layout, resolved: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Return path and recorded fingerprint of each input by name, for run.json."""
    rows = {}
    for item in required_inputs(resolved):
        record = files.read_json(record_path(layout, item.path)) or {}
        rows[item.name] = {"path": str(item.path), "fingerprint": record.get("fingerprint", "")}
    return rows


def problems_error(statuses: list[InputStatus]) -> OpsError:
    """Return the error that lists the problems of the inputs file by file."""
    problems = [text for status in statuses for text in status.problems]
    changed = all(status.state in ("changed", "recorded", "new") for status in statuses)
    remedy = (
        "restore the old files, or -e training_inputs_accept=true records the new ones"
        if changed
        else "copy the files again from their source; data.path and target.path of the configuration name them"
    )
    return OpsError(
        f"{len(problems)} problem(s) with the run's inputs: {truncate.join_items(problems, 20)}.",
        remedy=remedy,
        facts={"problems": problems},
    )
