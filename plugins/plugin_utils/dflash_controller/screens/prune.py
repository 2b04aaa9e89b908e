"""Plan or result of a prune."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dflash_ops.core import disk


def prune_screen(plan: Mapping[str, Any], *, done: bool) -> list[str]:
    """Return the paths that were or would be removed, then the kept ones, each with its reason."""
    total = disk.format_bytes(sum(item["bytes"] for item in plan["remove"]))
    verb = "removed" if done else "would remove"
    count = len(plan["remove"])
    lines = [f"{verb} {count} {'path' if count == 1 else 'paths'}, {total}"]
    lines += [f"  - {item['path']} ({item['reason']}, {disk.format_bytes(item['bytes'])})" for item in plan["remove"]]
    if plan["remove"] and not done:
        lines.append("  to remove them: .venv/bin/ansible-playbook playbooks/prune.yml -e prune_confirm=true")
    return [*lines, *(f"  + {item['path']} is kept: {item['reason']}" for item in plan["keep"])]
