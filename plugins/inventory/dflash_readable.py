"""Refuses an inventory that is not there or is no YAML. See DOCUMENTATION."""

from __future__ import annotations

DOCUMENTATION = r"""
name: dflash_readable
short_description: Refuse an inventory that cannot be read, in one message
description:
  - Ansible warns of a source that is not there or is broken, once for each of its plugins, and goes on with an empty
    inventory, in which the playbook then misses its boxes. This plugin is asked first, and ends the command with what
    is wrong and which inventories there are.
"""

import os
from pathlib import Path
from typing import Any

import yaml
from ansible.plugins.inventory import BaseInventoryPlugin
from ansible.utils.display import Display

FOLDER = Path(__file__).resolve().parents[2] / "inventory"


class InventoryModule(BaseInventoryPlugin):  # type: ignore[misc]
    """Takes what cannot be read, and nothing else."""

    NAME = "dflash_readable"

    def verify_file(self, path: str) -> bool:
        """Take a path that cannot be read; a list of hosts has a comma and is no path."""
        return "," not in path and bool(problem(Path(path)))

    def parse(self, inventory: Any, loader: Any, path: str, cache: bool = True) -> None:
        """End the command: an exception would be a warning among others."""
        there = ", ".join(f"inventory/{file.name}" for file in sorted(FOLDER.glob("*.yml")))
        wrong = f"The inventory {min(path, os.path.relpath(path), key=len)} {problem(Path(path))}. Nothing was done."
        remedy = f"correct it, or -i with one of {there}, or no -i for this machine"
        Display().error(f"{wrong} Remedy: {remedy}", wrap_text=False)
        raise SystemExit(1)


def problem(path: Path) -> str:
    """Return why an inventory cannot be read; empty when it can. Only its syntax counts: what it says is Ansible's."""
    if not os.path.lexists(path):
        return "is not there"
    try:
        if path.is_file() and path.suffix in (".yml", ".yaml"):
            yaml.compose(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        return f"cannot be read: {error}"
    except yaml.MarkedYAMLError as error:
        at = f" in line {error.problem_mark.line + 1}" if error.problem_mark else ""
        return f"is no YAML{at}: {error.problem}"
    except yaml.YAMLError as error:
        return f"is no YAML: {error}"
    return "" if os.access(path, os.R_OK) else "cannot be read"
