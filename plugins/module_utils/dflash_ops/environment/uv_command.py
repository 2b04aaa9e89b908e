"""One call of uv for all pins of a lock, in which each package is asked of one index only.

uv fetches from all indexes at once, so one call is faster than one for each index. A package with an index of its own
stands in a pyproject.toml which ties it to that index; everything else comes from folders and the default index. User
and password of an index travel in uv's environment, never in its arguments or in a file.
"""

from __future__ import annotations

import dataclasses
import json
import re
import urllib.parse
from collections.abc import Mapping, Sequence
from pathlib import Path

from .sources import OFF, Part, requirement_lines


@dataclasses.dataclass(frozen=True)
class Request:
    """What `uv pip install` gets.

    Args:
        arguments: what to install and where to look.
        environment: indexes and their passwords.
    """

    arguments: tuple[str, ...]
    environment: Mapping[str, str]


def write(folder: Path, parts: Sequence[Part], links: Sequence[Path]) -> Request:
    """Write what uv reads into `folder`, which the caller removes after the call.

    Args:
        folder: made here.
        parts: the plan.
        links: folders of wheels.
    """
    folder.mkdir()
    own = [part for part in parts if part.own and part.pins]
    plain = next(part for part in parts if not part.own)
    arguments = [word for link in links for word in ("--find-links", str(link))]
    environment: dict[str, str] = {}
    if plain.pins:
        (folder / "requirements.txt").write_text(requirement_lines(plain.pins))
        arguments += ["-r", str(folder / "requirements.txt")]
    if own:
        (folder / "pyproject.toml").write_text(project(own))
        (folder / "hashes.txt").write_text("".join(requirement_lines(part.pins) for part in own))
        arguments += ["-r", str(folder / "pyproject.toml"), "-c", str(folder / "hashes.txt")]
        for part in own:
            environment |= passwords(part)
    if plain.index == OFF and not own:
        arguments.append("--no-index")
    elif plain.index == OFF:  # --no-index would turn off the others too: an index with nothing in it
        (folder / "nothing").mkdir()
        environment["UV_DEFAULT_INDEX"] = str(folder / "nothing")
    elif plain.index:
        environment["UV_DEFAULT_INDEX"] = plain.index
    return Request(tuple(arguments), environment)


def index_name(part: Part) -> str:
    """Return the name under which uv knows the index of a part."""
    return part.pins[0].name


def project(own: Sequence[Part]) -> str:
    """Return a pyproject.toml that ties each package to its index."""
    pins = [(pin, index_name(part)) for part in own for pin in part.pins]
    wanted = [f"{pin.name}=={pin.version}" + (f" ; {pin.marker}" if pin.marker else "") for pin, _ in pins]
    lines = ["[project]", 'name = "environment"', 'version = "0"', f"dependencies = {json.dumps(wanted)}"]
    lines += ["[tool.uv.sources]", *dict.fromkeys(f'{pin.name} = {{ index = "{name}" }}' for pin, name in pins)]
    for part in own:
        url = json.dumps(without_login(part.index))
        lines += ["[[tool.uv.index]]", f'name = "{index_name(part)}"', f"url = {url}", "explicit = true"]
    return "\n".join(lines) + "\n"


def without_login(url: str) -> str:
    """Return a URL without user and password."""
    parts = urllib.parse.urlsplit(url)
    return urllib.parse.urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2]))


def passwords(part: Part) -> dict[str, str]:
    """Return user and password of a part's index as uv reads them from its environment."""
    parts = urllib.parse.urlsplit(part.index)
    name = re.sub(r"[^A-Z0-9]", "_", index_name(part).upper())
    found = {"USERNAME": parts.username, "PASSWORD": parts.password}
    return {f"UV_INDEX_{name}_{key}": urllib.parse.unquote(value) for key, value in found.items() if value}
