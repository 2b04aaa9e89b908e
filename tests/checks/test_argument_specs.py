"""Consistency of each role's argument_specs, defaults and README."""

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
def test_defaults_equal_the_spec(role: Path) -> None:
    defaults = load(role / "defaults/main.yml")
    specs = options(role)
    assert {name: spec["default"] for name, spec in specs.items() if "default" in spec} == defaults
    assert [name for name, spec in specs.items() if "default" not in spec and not spec.get("required")] == []


@by_role
def test_variables_start_with_the_role_name(role: Path) -> None:
    names = set(load(role / "defaults/main.yml")) | set(options(role))
    assert sorted(name for name in names if not name.startswith((f"{role.name}_", "dflash_"))) == []


@by_role
def test_every_option_has_a_description_and_a_type(role: Path) -> None:
    assert [name for name, spec in options(role).items() if not spec.get("description") or not spec.get("type")] == []


@by_role
def test_main_only_imports_tagged_task_files(role: Path) -> None:
    for entry in load(role / "tasks/main.yml"):
        assert "ansible.builtin.import_tasks" in entry or "ansible.builtin.include_tasks" in entry, entry
        assert entry.get("tags"), entry


@by_role
def test_readme_lists_the_variables(role: Path) -> None:
    text = (role / "README.md").read_text()
    assert role_readmes.updated(role, text) == text, "run .venv/bin/python tools/role_readmes.py"
