"""A role's argument_specs and its defaults say the same, and its README says what the specs say."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import role_readmes
import yaml

ROLES = sorted(path for path in (Path(__file__).resolve().parents[2] / "roles").iterdir() if path.is_dir())
by_role = pytest.mark.parametrize("role", ROLES, ids=lambda path: path.name)


def load(path: Path) -> Any:
    return yaml.safe_load(path.read_text()) or {}


def options(role: Path) -> dict[str, Any]:
    return load(role / "meta/argument_specs.yml")["argument_specs"]["main"].get("options") or {}


@by_role
def test_defaults_are_the_spec(role: Path) -> None:
    defaults = load(role / "defaults/main.yml")
    specs = options(role)
    assert {name: spec["default"] for name, spec in specs.items() if "default" in spec} == defaults
    assert [name for name, spec in specs.items() if "default" not in spec and not spec.get("required")] == []


@by_role
def test_names_begin_with_the_role(role: Path) -> None:
    names = set(load(role / "defaults/main.yml")) | set(options(role))
    assert sorted(name for name in names if not name.startswith((f"{role.name}_", "dflash_"))) == []


@by_role
def test_each_option_is_described(role: Path) -> None:
    assert [name for name, spec in options(role).items() if not spec.get("description") or not spec.get("type")] == []


@by_role
def test_main_is_a_table_of_contents(role: Path) -> None:
    for entry in load(role / "tasks/main.yml"):
        assert "ansible.builtin.import_tasks" in entry or "ansible.builtin.include_tasks" in entry, entry
        assert entry.get("tags"), entry


@by_role
def test_readme_has_the_variables(role: Path) -> None:
    text = (role / "README.md").read_text()
    assert role_readmes.renewed(role, text) == text, "run .venv/bin/python tools/role_readmes.py"
