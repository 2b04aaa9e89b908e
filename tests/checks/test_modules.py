"""Consistency of each module's documentation, arguments and check mode."""

from __future__ import annotations

import ast
import importlib.util
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import yaml
from ansible.module_utils import dflash_module

REPO = Path(__file__).resolve().parents[2]
MODULES = sorted((REPO / "plugins/modules").glob("*.py"))
ON_THE_HOST = {"dflash_container"}  # runs on the Proxmox host, without dflash_root and operator lock
by_module = pytest.mark.parametrize("path", MODULES, ids=lambda path: path.stem)


def load(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"checked_{path.stem}", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def documented(module: ModuleType, part: str) -> dict[str, Any]:
    """Return the options (or attributes) of a module and of its documentation fragments."""
    documentation = yaml.safe_load(module.DOCUMENTATION)
    found = dict(documentation.get(part) or {})
    for name in documentation.get("extends_documentation_fragment", []):
        file, _, section = name.partition(".")
        fragment = load(REPO / "plugins/doc_fragments" / f"{file}.py").ModuleDocFragment
        text = getattr(fragment, (section or "documentation").upper())
        found.update(yaml.safe_load(text).get(part) or {})
    return found


@by_module
def test_documented_options_equal_the_arguments(path: Path) -> None:
    module = load(path)
    options = documented(module, "options")
    common = {} if path.stem in ON_THE_HOST else dflash_module.COMMON
    arguments = {**common, **module.ARGUMENTS}
    assert set(options) == set(arguments)
    for name, spec in arguments.items():
        option = options[name]
        assert option["type"] == spec.get("type", "str"), name
        assert option.get("required", False) == spec.get("required", False), name
        assert option.get("choices") == (list(spec["choices"]) if "choices" in spec else None), name
        assert option.get("default") == spec.get("default"), name


@by_module
def test_examples_and_results_are_documented(path: Path) -> None:
    module = load(path)
    assert all(task["name"] for task in yaml.safe_load(module.EXAMPLES))
    results = yaml.safe_load(module.RETURN).values()
    assert all({"description", "returned", "type", "sample"} <= set(result) for result in results)


@by_module
def test_check_mode_is_documented_as_supported(path: Path) -> None:
    assert documented(load(path), "attributes")["check_mode"]["support"] == "full"


@by_module
def test_act_is_short(path: Path) -> None:
    functions = [node for node in ast.parse(path.read_text()).body if isinstance(node, ast.FunctionDef)]
    act = next(function for function in functions if function.name == "act")
    assert act.end_lineno is not None
    assert act.end_lineno - act.lineno <= 45
