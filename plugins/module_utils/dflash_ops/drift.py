"""Drift of a selected environment and release from their records, one sentence per difference."""

from __future__ import annotations

from . import release
from .core import tree_manifest
from .core.paths import Layout
from .environment import inspection

# Remedies of a refused launch. Neither playbook replaces anything without the -e option.
HEAL_ENVIRONMENT = "relaunch.yml --tags env -e python_env_heal=true rebuilds it"
HEAL_RELEASE = "relaunch.yml --tags release -e trainer_release_heal=true restores the committed files"


def environment_drift(layout: Layout, env_id: str, *, full: bool = False) -> list[str]:
    """Return the differences of an environment, folded to one line per folder."""
    drift = inspection.find_drift(layout, env_id, full=full)
    return [str(difference) for difference in tree_manifest.fold(drift)]


def release_drift(layout: Layout, release_id: str) -> list[str]:
    """Return the differences between a release and its commit."""
    return [str(difference) for difference in tree_manifest.fold(release.find_drift(layout, release_id))]
