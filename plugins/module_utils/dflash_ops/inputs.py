"""Dataset and target weights: present, whole as far as their own headers tell, and the ones that were fingerprinted.

The record of one input is `inputs/<hash of its path>.json`: each file with size, time and SHA-256. The cheap check
compares sizes and times and hashes only what looks different; the full check hashes everything.
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
# Which of the configuration's needs is which input, in the operator's words.
NEEDS = (("dataset", "data_path"), ("evaluation", "eval_path"), ("target", "target_path"))
ARROW_END = b"\xff\xff\xff\xff\x00\x00\x00\x00"
MAGIC = {".gguf": b"GGUF"}
SAFETENSORS_HEADER_LIMIT = 100 << 20


@dataclasses.dataclass(frozen=True)
class Input:
    """One thing a run reads.

    Args:
        name: dataset, evaluation or target.
        path: folder or file.
    """

    name: str
    path: Path


@dataclasses.dataclass(frozen=True)
class Look:
    """How one input stands.

    Args:
        item: which.
        state: absent, damaged, new, recorded or changed.
        problems: what is wrong, naming each file.
        fingerprint: hash over its files, when it is recorded and unchanged.
        size: bytes of its files.
    """

    item: Input
    state: str
    problems: tuple[str, ...]
    fingerprint: str
    size: int

    def as_dict(self) -> dict[str, Any]:
        return {
            "path": str(self.item.path),
            "state": self.state,
            "problems": list(self.problems),
            "fingerprint": self.fingerprint,
            "bytes": self.size,
        }


def wanted(resolved: Mapping[str, Any]) -> list[Input]:
    """Return the inputs of a configuration that the trainer resolved; random weights are none."""
    needs = resolved["needs"]
    given = [(name, str(needs.get(key) or "")) for name, key in NEEDS]
    return [Input(name, Path(path)) for name, path in given if path and not path.startswith("random:")]


def record_path(layout: Layout, path: Path) -> Path:
    return layout.root / "inputs" / f"{hashlib.sha256(str(path).encode()).hexdigest()[:16]}.json"


def stats(path: Path) -> dict[str, Any]:
    """Return name to stat of an input's files; a single file is named by itself."""
    if path.is_file():
        return {path.name: path.stat()}
    return {name: (path / name).stat() for name in tree_manifest.scan(path) if (path / name).is_file()}


def top_of(path: Path) -> Path:
    return path.parent if path.is_file() else path


def look(layout: Layout, item: Input, *, full: bool = False) -> Look:
    """Say how an input stands. Changes nothing."""
    if not item.path.exists():
        return Look(item, "absent", (f"{item.name}: {item.path} is not there",), "", 0)
    now = stats(item.path)
    size = sum(stat.st_size for stat in now.values())
    broken = damage(item.path, now)
    if broken:
        return Look(item, "damaged", tuple(f"{item.name}: {text}" for text in broken), "", size)
    record = files.read_json(record_path(layout, item.path))
    if not record:
        return Look(item, "new", (), "", size)
    drift = compare(item.path, now, record["files"], full=full)
    if drift:
        return Look(item, "changed", tuple(f"{item.name}: {item.path}: {one}" for one in drift), "", size)
    return Look(item, "recorded", (), record["fingerprint"], size)


def compare(path: Path, now: Mapping[str, Any], then: Manifest, *, full: bool) -> list[Drift]:
    """Return what differs from the record."""
    drift = [Drift("removed", name, "is missing") for name in then.keys() - now.keys()]
    drift += [Drift("added", name, "is new") for name in now.keys() - then.keys()]
    suspect = [
        name
        for name in now.keys() & then.keys()
        if full or [now[name].st_size, now[name].st_mtime_ns] != then[name][:2]
    ]
    hashes = tree_manifest.digests(top_of(path), suspect)
    drift += [
        Drift(
            "edited",
            name,
            f"{then[name][0]} bytes when it was fingerprinted, {now[name].st_size} now, "
            f"sha256 {hashes[name][:12]} instead of {then[name][2][:12]}",
        )
        for name in suspect
        if hashes[name] != then[name][2]
    ]
    return sorted(drift, key=lambda one: (one.kind, one.path))


def damage(path: Path, now: Mapping[str, Any]) -> list[str]:
    """Return what the files' own headers say is wrong: truncated Arrow, safetensors and GGUF files, missing parts."""
    top = top_of(path)
    found = [f"{top / name}: {text}" for name in sorted(now) if (text := file_damage(top / name, now[name].st_size))]
    listed = files.read_json(path / "state.json") if path.is_dir() else None
    parts = [row["filename"] for row in (listed or {}).get("_data_files", []) if isinstance(row, dict)]
    index = files.read_json(path / "model.safetensors.index.json") if path.is_dir() else None
    parts += sorted(set((index or {}).get("weight_map", {}).values()))
    return found + [f"{top / name} is missing, and listed" for name in parts if name not in now]


def file_damage(path: Path, size: int) -> str:
    """Return what is wrong with one file; empty when nothing is seen."""
    if path.suffix == ".safetensors":
        return safetensors_damage(path, size)
    if path.suffix == ".arrow":
        return (
            "" if last_bytes(path, len(ARROW_END)) == ARROW_END else f"is cut off: no end of stream after {size} bytes"
        )
    wanted_magic = MAGIC.get(path.suffix)
    if wanted_magic:
        with path.open("rb") as stream:
            return "" if stream.read(len(wanted_magic)) == wanted_magic else f"is no {path.suffix[1:].upper()} file"
    return ""


def last_bytes(path: Path, count: int) -> bytes:
    with path.open("rb") as stream:
        stream.seek(max(0, path.stat().st_size - count))
        return stream.read()


def safetensors_damage(path: Path, size: int) -> str:
    """Compare a safetensors file's size with what its header says."""
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
    whole = 8 + length + max(ends, default=0)
    return "" if size == whole else f"is {size} bytes long, its header says {whole}"


def record(layout: Layout, item: Input) -> str:
    """Hash an input's files, write its record, and return its fingerprint."""
    now = stats(item.path)
    hashes = tree_manifest.digests(top_of(item.path), now)
    manifest: Manifest = {name: [now[name].st_size, now[name].st_mtime_ns, hashes[name]] for name in sorted(now)}
    found = tree_manifest.fingerprint(manifest)
    files.write_json(
        record_path(layout, item.path),
        {
            "name": item.name,
            "path": str(item.path),
            "fingerprint": found,
            "recorded_at": time.time(),
            "files": manifest,
        },
    )
    return found


def record_job(arguments: dict[str, Any], progress: Progress) -> dict[str, Any]:
    """Job entry: fingerprint inputs. Arguments: root, workspace, inputs as [[name, path], ...]."""
    layout = Layout.of(arguments["root"], arguments["workspace"])
    items = [Input(name, Path(path)) for name, path in arguments["inputs"]]
    for number, item in enumerate(items, start=1):
        size = sum(stat.st_size for stat in stats(item.path).values())
        progress.say(f"fingerprinting {item.name}: {size >> 20} MB in {item.path}", done=number, total=len(items))
        record(layout, item)
    return {"changed": True}


def check(layout: Layout, resolved: Mapping[str, Any], *, full: bool = False) -> list[str]:
    """Return what is wrong with the inputs of a configuration, for every launch (cheap) and `verify` (full)."""
    looks = [look(layout, item, full=full) for item in wanted(resolved)]
    return [text for one in looks for text in one.problems]


def fingerprints(layout: Layout, resolved: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Return name to path and fingerprint of the inputs, as recorded, for run.json."""
    found = {}
    for item in wanted(resolved):
        held = files.read_json(record_path(layout, item.path)) or {}
        found[item.name] = {"path": str(item.path), "fingerprint": held.get("fingerprint", "")}
    return found


def refusal(looks: list[Look]) -> OpsError:
    """Say what is wrong with the inputs, file by file."""
    texts = [text for one in looks for text in one.problems]
    changed = all(one.state in ("changed", "recorded", "new") for one in looks)
    remedy = (
        "put the old files back, or -e training_inputs_accept=true takes the new ones as the right ones"
        if changed
        else "place the files again from where they came; data.path and target.path of the configuration name them"
    )
    return OpsError(
        f"{len(texts)} problem(s) with what the run reads: {truncate.join_items(texts, 20)}.",
        remedy=remedy,
        facts={"problems": texts},
    )
