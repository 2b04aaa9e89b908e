#!/usr/bin/env python3
"""Write the table of configuration keys in docs/trainer-reference.md from trainer/dflash_trainer/config/schema.py.

python tools/config_table.py          rewrite the table between the two markers
python tools/config_table.py --check  compare only; exit code 1 if they differ
"""

from __future__ import annotations

import ast
import sys
from pathlib import Path

REPO = Path(__file__).resolve().parents[1]
SOURCE = REPO / "trainer/dflash_trainer/config/schema.py"
DOCUMENT = REPO / "docs/trainer-reference.md"
BEGIN, END = "<!-- configuration: begin -->", "<!-- configuration: end -->"


def main(arguments: list[str]) -> int:
    """Rewrite or compare the table."""
    text = DOCUMENT.read_text(encoding="utf-8")
    before, _, rest = text.partition(BEGIN)
    after = rest.partition(END)[2]
    updated = f"{before}{BEGIN}\n{table(SOURCE.read_text(encoding='utf-8'))}{END}{after}"
    if updated == text:
        return 0
    if "--check" in arguments:
        print(f"{DOCUMENT.name}: the table of keys differs from {SOURCE.name}; run tools/config_table.py")
        return 1
    DOCUMENT.write_text(updated, encoding="utf-8")
    return 0


def table(source: str) -> str:
    """Return the table: name, default and meaning of each key."""
    lines = ["| key | default | meaning |", "| --- | --- | --- |"]
    for node in ast.parse(source).body:
        if isinstance(node, ast.ClassDef) and node.name.endswith("Config") and node.name != "Config":
            lines += section_rows(node)
    return "\n".join(lines) + "\n"


def section_rows(node: ast.ClassDef) -> list[str]:
    """Return the rows of a section: each annotated field and the string below it."""
    section = ""
    rows = []
    for field, after in zip(node.body, [*node.body[1:], None]):
        if isinstance(field, ast.Assign) and isinstance(field.value, ast.Constant):
            section = str(field.value.value)
        if not isinstance(field, ast.AnnAssign) or not isinstance(field.target, ast.Name):
            continue
        assert isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant), f"{field.target.id}: no sentence"
        default = "required" if field.value is None else f"`{ast.unparse(field.value)}`"
        choices = choices_of(field.annotation)
        meaning = f"{after.value.value!s} {choices}".strip().replace("|", "\\|")
        rows.append(f"| `{section}.{field.target.id}` | {default} | {meaning} |")
    return rows


def choices_of(annotation: ast.expr) -> str:
    """Return the values of a Literal or of Dtype as text."""
    if (
        isinstance(annotation, ast.Subscript)
        and isinstance(annotation.value, ast.Name)
        and annotation.value.id == "Literal"
    ):
        values = annotation.slice.elts if isinstance(annotation.slice, ast.Tuple) else [annotation.slice]
        return "(" + ", ".join(str(value.value) for value in values if isinstance(value, ast.Constant)) + ")"
    return "(float32, bfloat16)" if isinstance(annotation, ast.Name) and annotation.id == "Dtype" else ""


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
