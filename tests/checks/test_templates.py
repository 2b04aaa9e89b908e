"""Syntax of every template, YAML file and Jinja expression."""

from __future__ import annotations

from pathlib import Path

import jinja2
import pytest
import yaml

REPO = Path(__file__).resolve().parents[2]
TEMPLATES = sorted(
    path for folder in ("roles", "playbooks", "molecule", "tests") for path in (REPO / folder).rglob("*.j2")
)
YAML = sorted(
    path
    for folder in ("roles", "playbooks", "group_vars", "inventory", "molecule")
    for path in (REPO / folder).rglob("*.yml")
)


def ids(path: Path) -> str:
    return str(path.relative_to(REPO))


@pytest.mark.parametrize("path", [*TEMPLATES, *YAML], ids=ids)
def test_jinja_parses(path: Path) -> None:
    jinja2.Environment(extensions=["jinja2.ext.do", "jinja2.ext.loopcontrols"]).parse(path.read_text())


@pytest.mark.parametrize("path", YAML, ids=ids)
def test_yaml_parses_as_one_document(path: Path) -> None:
    yaml.safe_load(path.read_text())


def test_templates_start_with_ansible_managed() -> None:
    assert [ids(path) for path in TEMPLATES if "ansible_managed" not in path.read_text().splitlines()[0]] == []
