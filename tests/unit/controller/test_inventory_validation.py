"""Each invalid value is refused by name with a remedy, and all of them in one message."""

from __future__ import annotations

import runpy
from pathlib import Path
from typing import Any

import pytest
from dflash_controller import inventory_validation
from dflash_ops.core.errors import OpsError

LOCKS = Path(__file__).resolve().parents[3] / "trainer" / "locks"

GOOD: dict[str, Any] = {
    "dflash_root": "~/.local/share/dflash",
    "dflash_workspace": "",
    "dflash_profile": "cpu",
    "dflash_config": "demo.toml",
    "dflash_overrides": ["optimizer.max_steps=5"],
    "python_env_python": "3.12",
    "python_env_find_links": ["/opt/w"],
    "python_env_index_urls": {"default": "https://me:pw@mirror.example/simple", "torch": "none"},
    "python_env_wheelhouse": "",
    "training_run_label": "llama3.1-8b",
    "training_run_session": "dflash",
}


def test_valid_values_pass(repo: Path) -> None:
    assert inventory_validation.problems(GOOD, repo) == []


@pytest.mark.parametrize(
    ("name", "value", "problem"),
    [
        ("dflash_root", "", "is empty"),
        ("dflash_root", "opt/dflash", "is not absolute"),
        ("dflash_root", "/", "the root of the file system"),
        ("dflash_root", "/opt/..", "the root of the file system"),
        ("dflash_root", "/opt/a\nb", "line break"),
        ("dflash_workspace", "big", "is not absolute"),
        ("dflash_profile", "gpu", "choose one of cpu, cu128, preinstalled"),
        ("dflash_config", "", "choose a file below trainer/configs:"),
        ("dflash_config", "nope.toml", "does not exist"),
        ("dflash_config", "../locks/cpu.in", "outside trainer/configs"),
        ("dflash_config", ".", "is a folder"),
        ("dflash_overrides", "a.b=1", "is not a list"),
        ("dflash_overrides", ["max_steps=1"], "is not section.key=value"),
        ("python_env_python", "python3", "neither a version"),
        ("python_env_index_urls", "https://x.example", "is not a mapping"),
        ("python_env_index_urls", {"torch": "x.example/simple"}, "entry torch is neither an http"),
        ("python_env_find_links", ["wheels"], "is not absolute"),
        ("python_env_lock_file", "/nonexistent", "No such file or directory on the controller"),
        ("python_env_lock_file", "/", "Is a directory on the controller"),
        ("python_env_lock_file", __file__, "is not a complete lockfile"),
        ("python_env_lock_file", "~nobody-of-this-name/x.lock", "cannot be read as text"),
        ("python_env_lock_file", "/tmp/a\0b", "cannot be read as text"),
        ("python_env_lock_file", str(LOCKS / "cu128.lock"), "is a lockfile for the profile cu128; set dflash_"),
        ("python_env_wheelhouse", "/nonexistent", "is not a folder on the controller"),
        ("python_env_wheelhouse", __file__, "is a file on the controller"),
        ("training_run_label", "///", "training_run_label"),
        ("training_run_session", "a.b", "training_run_session"),
    ],
)
def test_an_invalid_value_is_named(repo: Path, name: str, value: Any, problem: str) -> None:
    found = inventory_validation.problems({**GOOD, name: value}, repo)
    assert len(found) == 1
    assert name in found[0]
    assert problem in found[0]


def test_all_invalid_values_are_reported_at_once(repo: Path) -> None:
    bad = {"dflash_root": "x", "dflash_profile": "y", "dflash_config": "z"}
    found = inventory_validation.problems({**GOOD, **bad}, repo)
    assert len(found) == 3


def test_a_configuration_without_target_devices_is_refused_with_the_trainers_message(repo: Path) -> None:
    inventory_validation.require_config("demo.toml", [], repo)
    with pytest.raises(OpsError, match=r"target\.devices.*no devices"):
        inventory_validation.require_config("demo.toml", ["target.devices=[]"], repo)


def test_a_password_in_an_index_is_not_repeated(repo: Path) -> None:
    bad = {"python_env_index_urls": {"default": "ftp://me:secret@x.example"}}
    found = inventory_validation.problems({**GOOD, **bad}, repo)
    assert found
    assert "secret" not in found[0]


@pytest.mark.parametrize(
    ("name", "value", "problem"),
    [
        ("training_run_speed_steps", 0, "1 step or more"),
        ("training_run_tolerance", 80.0, "at most 1"),
        ("training_run_expected_tok_s", float("nan"), "tokens per second"),
        ("training_run_environment", {"WANDB_API_KEY": "x"}, "looks like a secret"),
        ("training_run_notify", {"comand": "x"}, "comand"),
        ("training_run_script_link", "start.sh", "is not absolute"),
    ],
)
def test_a_value_of_the_right_type_must_be_in_range(name: str, value: Any, problem: str) -> None:
    found = inventory_validation.range_problems(name, value)
    assert len(found) == 1
    assert name in found[0]
    assert problem in found[0]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("training_run_expected_tok_s", "fast"),
        ("training_run_if_running", "leave"),
        ("python_env_heal", "perhaps"),
        ("training_run_mark_bad", {"a": 1}),
        ("training_run_environment", "MODE"),
    ],
)
def test_a_wrong_type_is_reported_before_any_role_runs(repo: Path, name: str, value: Any) -> None:
    plugin = runpy.run_path(str(repo / "plugins/action/dflash_inventory_check.py"))
    options = plugin["role_options"](repo)
    found = plugin["option_problems"](name, value, options[name])
    assert len(found) == 1
    assert found[0].startswith(f"{name}={value!r}: ")
    assert plugin["option_problems"](name, options[name]["default"], options[name]) == []
