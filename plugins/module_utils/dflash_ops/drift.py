"""What differs between a selection and its records, one sentence each: environment, release."""

from __future__ import annotations

from . import release
from .core import tree_manifest
from .core.paths import Layout
from .environment import inspection

# What a refused launch tells the operator to type: without the word after -e neither playbook replaces anything.
HEAL_ENVIRONMENT = "relaunch.yml --tags env -e python_env_heal=true builds it again"
HEAL_RELEASE = "relaunch.yml --tags release -e trainer_release_heal=true places the committed files again"


def of_environment(layout: Layout, env_id: str, *, full: bool = False) -> list[str]:
    """Return the differences of an environment, folded to one line a folder."""
    return [str(one) for one in tree_manifest.fold(inspection.check(layout, env_id, full=full))]


def of_release(layout: Layout, release_id: str) -> list[str]:
    """Return the files of a release that are not those of its commit."""
    return [str(one) for one in tree_manifest.fold(release.check(layout, release_id))]
