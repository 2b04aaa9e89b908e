#!/usr/bin/env python3
"""Make failure_catalogue.py and docs/failures.md from failures.yml; with --check only say whether they are in step."""

from __future__ import annotations

import pprint
import sys
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parent.parent
SOURCE = ROOT / "plugins/module_utils/dflash_ops/monitor/failures.yml"
DATA = SOURCE.with_name("failure_catalogue.py")
PAGE = ROOT / "docs/failures.md"
FIELDS = ("name", "group", "strings", "patterns", "probe", "cause", "remedy", "source")


def data_file(entries: list[dict[str, Any]]) -> str:
    """Return the Python file that carries the catalogue to a box."""
    body = pprint.pformat(
        [{key: entry[key] for key in FIELDS if key in entry} for entry in entries], width=116, sort_dicts=False
    )
    return (
        '"""The known failures as data. Made by tools/failures.py from failures.yml; do not edit."""\n'
        "from __future__ import annotations\n\n"
        "from typing import Any\n\n"
        f"CATALOGUE: list[dict[str, Any]] = {body}\n"
    )


def page(entries: list[dict[str, Any]]) -> str:
    """Return docs/failures.md."""
    lines = [
        "# Failures known by name",
        "",
        "<!-- Made by tools/failures.py from plugins/module_utils/dflash_ops/monitor/failures.yml; do not edit. -->",
        "",
        f"{len(entries)} failures. `status.yml`, `verify.yml` and every launch look for them in the run's log and on",
        "the box, and print the name, the cause and the remedy. A failure that is not here shows the log's last lines.",
        "",
    ]
    for group in dict.fromkeys(entry["group"] for entry in entries):
        lines += [f"## {group}", ""]
        for entry in (entry for entry in entries if entry["group"] == group):
            lines += [f"### {entry['name']}", "", f"- Cause: {entry['cause']}", f"- Remedy: {entry['remedy']}"]
            lines += [f"- Log line: `{text}`" for text in entry.get("strings", ())]
            lines += [f"- Log pattern: `{text}`" for text in entry.get("patterns", ())]
            lines += [f"- Probe: {entry['probe']}"] if entry.get("probe") else []
            lines += [f"- Seen in: {entry['source']}", ""]
    return "\n".join(lines)


def main() -> int:
    entries = yaml.safe_load(SOURCE.read_text(encoding="utf-8"))
    wanted = {DATA: data_file(entries), PAGE: page(entries)}
    stale = [path for path, text in wanted.items() if not path.is_file() or path.read_text(encoding="utf-8") != text]
    if "--check" in sys.argv[1:]:
        for path in stale:
            print(
                f"{path.relative_to(ROOT)} is not what failures.yml gives; run: python tools/failures.py",
                file=sys.stderr,
            )
        return 1 if stale else 0
    for path in stale:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(wanted[path], encoding="utf-8")
        print(f"wrote {path.relative_to(ROOT)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
