"""Write the variables of each role's argument_specs between the two markers of its README.

Usage: .venv/bin/python tools/role_readmes.py
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

REPO = Path(__file__).resolve().parents[1]
BEGIN, END = "<!-- variables: written by tools/role_readmes.py -->", "<!-- end of variables -->"


def shown(value: Any) -> str:
    """Return a default value as YAML."""
    if value == "":
        return '`""`'
    return f"`{yaml.safe_dump(value, default_flow_style=True, width=1000).strip().removesuffix('...').strip()}`"


def rows(role: Path) -> list[str]:
    """Return the rows of the table, one per variable."""
    spec = yaml.safe_load((role / "meta/argument_specs.yml").read_text())["argument_specs"]["main"]
    lines = []
    for name, option in (spec.get("options") or {}).items():
        default = "required" if option.get("required") else shown(option.get("default"))
        choices = f" One of {', '.join(f'`{choice}`' for choice in option['choices'])}." if "choices" in option else ""
        text = " ".join(str(option["description"]).split()).replace("|", "\\|")
        lines.append(f"| `{name}` | {option['type']} | {default.replace('|', chr(92) + '|')} | {text}{choices} |")
    return lines


def updated(role: Path, text: str) -> str:
    """Return a README's text with the current variables."""
    table = rows(role)
    if table:
        table = ["| variable | type | default | meaning |", "|---|---|---|---|", *table]
    else:
        table = ["None."]
    before, _, rest = text.partition(BEGIN)
    after = rest.partition(END)[2]
    return "\n".join([before + BEGIN, "", *table, "", END + after])


def main() -> None:
    """Update every README."""
    for role in sorted((REPO / "roles").iterdir()):
        readme = role / "README.md"
        if readme.is_file():
            readme.write_text(updated(role, readme.read_text()))


if __name__ == "__main__":
    main()
