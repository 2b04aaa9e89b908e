"""Arguments and environment variables of the one uv call that installs all pins.

uv downloads from all indexes in parallel, so one call is faster than one per index. A package with a dedicated index is
tied to it in a pyproject.toml; all others come from folders and the default index. User and password of an index are
passed in environment variables only, never in arguments or files.
"""

from __future__ import annotations

import dataclasses
import json
import re
import urllib.parse
from collections.abc import Mapping, Sequence
from pathlib import Path

from .sources import OFF, SourceGroup, requirement_lines


@dataclasses.dataclass(frozen=True)
class Request:
    """Input of `uv pip install`.

    Args:
        arguments: requirement files and sources.
        env_vars: index URLs and credentials.
    """

    arguments: tuple[str, ...]
    env_vars: Mapping[str, str]


def write(folder: Path, groups: Sequence[SourceGroup], links: Sequence[Path]) -> Request:
    """Write the files that uv reads and return its arguments.

    Args:
        folder: created here; the caller removes it after the call.
        groups: the plan.
        links: folders of wheels.
    """
    folder.mkdir()
    dedicated = [group for group in groups if group.dedicated and group.pins]
    default = next(group for group in groups if not group.dedicated)
    arguments = [option for link in links for option in ("--find-links", str(link))]
    env_vars: dict[str, str] = {}
    if default.pins:
        (folder / "requirements.txt").write_text(requirement_lines(default.pins))
        arguments += ["-r", str(folder / "requirements.txt")]
    if dedicated:
        (folder / "pyproject.toml").write_text(project(dedicated))
        (folder / "hashes.txt").write_text("".join(requirement_lines(group.pins) for group in dedicated))
        arguments += ["-r", str(folder / "pyproject.toml"), "-c", str(folder / "hashes.txt")]
        for group in dedicated:
            env_vars |= credentials(group)
    if default.index == OFF and not dedicated:
        arguments.append("--no-index")
    elif default.index == OFF:  # --no-index would disable the dedicated indexes too; use an empty default index
        (folder / "empty-index").mkdir()
        env_vars["UV_DEFAULT_INDEX"] = str(folder / "empty-index")
    elif default.index:
        env_vars["UV_DEFAULT_INDEX"] = default.index
    return Request(tuple(arguments), env_vars)


def index_name(group: SourceGroup) -> str:
    """Return uv's name for the index of a group."""
    return group.pins[0].name


def project(dedicated: Sequence[SourceGroup]) -> str:
    """Return a pyproject.toml that ties each package to its index."""
    pins = [(pin, index_name(group)) for group in dedicated for pin in group.pins]
    dependencies = [f"{pin.name}=={pin.version}" + (f" ; {pin.marker}" if pin.marker else "") for pin, _ in pins]
    lines = ["[project]", 'name = "environment"', 'version = "0"', f"dependencies = {json.dumps(dependencies)}"]
    lines += ["[tool.uv.sources]", *dict.fromkeys(f'{pin.name} = {{ index = "{name}" }}' for pin, name in pins)]
    for group in dedicated:
        url = json.dumps(without_credentials(group.index))
        lines += ["[[tool.uv.index]]", f'name = "{index_name(group)}"', f"url = {url}", "explicit = true"]
    return "\n".join(lines) + "\n"


def without_credentials(url: str) -> str:
    """Return a URL without user and password."""
    parts = urllib.parse.urlsplit(url)
    return urllib.parse.urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2]))


def credentials(group: SourceGroup) -> dict[str, str]:
    """Return user and password of a group's index as uv's environment variables."""
    parts = urllib.parse.urlsplit(group.index)
    name = re.sub(r"[^A-Z0-9]", "_", index_name(group).upper())
    values = {"USERNAME": parts.username, "PASSWORD": parts.password}
    return {f"UV_INDEX_{name}_{key}": urllib.parse.unquote(value) for key, value in values.items() if value}
