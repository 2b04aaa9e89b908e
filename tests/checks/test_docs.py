"""Existence of the tags, playbooks, make targets, variables and files that the documents mention."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

REPO = Path(__file__).resolve().parents[2]
DOCUMENTS = sorted([*REPO.glob("*.md"), *REPO.glob("docs/*.md"), *REPO.glob("roles/*/README.md")])
by_document = pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(REPO)))


def yaml_files() -> list[Path]:
    return [path for folder in ("playbooks", "roles", "molecule") for path in (REPO / folder).rglob("*.yml")]


def tags_in(value: Any) -> Iterator[str]:
    """Yield every tag below a YAML value."""
    if isinstance(value, dict):
        found = value.get("tags", [])
        yield from [found] if isinstance(found, str) else found
        for item in value.values():
            yield from tags_in(item)
    elif isinstance(value, list):
        for item in value:
            yield from tags_in(item)


@by_document
def test_tags_exist(document: Path) -> None:
    real = {tag for path in yaml_files() for tag in tags_in(yaml.safe_load(path.read_text()))} | {"all", "always"}
    lists = re.findall(r"--(?:skip-)?tags[ =]([\w,]+)", document.read_text())
    named = {tag for text in lists for tag in text.split(",")}
    assert sorted(named - real) == []


@by_document
def test_playbooks_and_scripts_exist(document: Path) -> None:
    named = set(re.findall(r"\b((?:playbooks|inventory|bench|tools)/\w+\.(?:yml|py|sh))\b", document.read_text()))
    named |= set(re.findall(r"ansible-playbook (\w+\.yml)", document.read_text()))
    assert sorted(name for name in named if not (REPO / name).exists() and not name.startswith("inventory/m")) == []


@by_document
def test_make_targets_exist(document: Path) -> None:
    targets = set(re.findall(r"^([\w.-]+):", (REPO / "Makefile").read_text(), re.MULTILINE)) | {".venv"}
    named = set(re.findall(r"(?:`|^)make ([\w.-]+)", document.read_text(), re.MULTILINE))
    assert sorted(named - targets) == []


@by_document
def test_role_variables_exist(document: Path) -> None:
    roles = [path.name for path in (REPO / "roles").iterdir() if path.is_dir()]
    known = {
        name
        for role in roles
        for name in yaml.safe_load((REPO / "roles" / role / "defaults/main.yml").read_text()) or {}
    }
    known |= set(yaml.safe_load((REPO / "group_vars/all/dflash.yml").read_text()))
    named = set(re.findall(rf"-e (?:'?\{{?)?((?:{'|'.join(roles)})_\w+)", document.read_text()))
    assert sorted(named - known) == []


@by_document
def test_relative_links_resolve(document: Path) -> None:
    links = re.findall(r"\]\((?!https?:|#|mailto:)([^)#\s]+)", document.read_text())
    assert [link for link in links if not (document.parent / link).exists()] == []


@by_document
def test_named_files_exist(document: Path) -> None:
    bases = [REPO / base for base in ("", "plugins/module_utils/dflash_ops", "plugins/plugin_utils")]
    bases += [REPO / "trainer/dflash_trainer", REPO / "trainer", document.parent, *REPO.glob("roles/*")]
    named = set(re.findall(r"`([\w.-]+/[\w./-]+\.(?:py|yml|toml|in|lock|md))`", document.read_text()))
    assert sorted(name for name in named if not any((base / name).exists() for base in bases)) == []


def test_functions_named_in_the_architecture_exist() -> None:
    table = (REPO / "docs/architecture.md").read_text()
    bases = ("plugins/module_utils/dflash_ops", "plugins/plugin_utils", "trainer/dflash_trainer")
    for path, functions in re.findall(r"`([\w/]+\.py)` \(((?:`\w+`(?:, )?)+)\)", table):
        file = next(REPO / base / path for base in bases if (REPO / base / path).exists())
        missing = [name for name in re.findall(r"\w+", functions) if f"def {name}(" not in file.read_text()]
        assert missing == [], path
