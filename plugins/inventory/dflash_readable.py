"""Refuse an inventory that does not exist or is not valid YAML. See DOCUMENTATION."""

from __future__ import annotations

DOCUMENTATION = r"""
name: dflash_readable
short_description: Refuse an unreadable inventory with one message
description:
  - For a missing or broken inventory source, Ansible prints one warning per inventory plugin and continues with an
    empty inventory. This plugin runs first and ends the command with the problem and a list of existing
    inventories.
"""

import os
from pathlib import Path
from typing import Any

import yaml
from ansible.plugins.inventory import BaseInventoryPlugin
from ansible.utils.display import Display

FOLDER = Path(__file__).resolve().parents[2] / "inventory"


class InventoryModule(BaseInventoryPlugin):  # type: ignore[misc]
    """Handles unreadable sources only."""

    NAME = "dflash_readable"

    def verify_file(self, path: str) -> bool:
        """Return true for an unreadable path; a list of hosts contains a comma and is not a path."""
        return "," not in path and bool(problem(Path(path)))

    def parse(self, inventory: Any, loader: Any, path: str, cache: bool = True) -> None:
        """End the command; Ansible would turn an exception into a warning."""
        existing = ", ".join(f"inventory/{file.name}" for file in sorted(FOLDER.glob("*.yml")))
        relative = os.path.relpath(path)
        name = path if relative.startswith("..") else relative
        remedy = f"correct it, use -i with one of {existing}, or omit -i for this machine"
        text = f"The inventory {name} {problem(Path(path))}. Nothing was done. Remedy: {remedy}"
        Display().error(text, wrap_text=False)
        raise SystemExit(1)


def problem(path: Path) -> str:
    """Return the reason why an inventory is unreadable; empty when it is readable. Only the syntax is checked."""
    if not os.path.lexists(path):
        return "does not exist"
    try:
        if path.is_file() and path.suffix in (".yml", ".yaml"):
            yaml.compose(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        return f"cannot be read: {error}"
    except yaml.MarkedYAMLError as error:
        at = f" in line {error.problem_mark.line + 1}" if error.problem_mark else ""
        return f"is not valid YAML{at}: {error.problem}"
    except yaml.YAMLError as error:
        return f"is not valid YAML: {error}"
    return "" if os.access(path, os.R_OK) else "cannot be read"
