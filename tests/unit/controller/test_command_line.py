"""Names given with -e and --tags are read, or reported with a suggestion; never ignored silently."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from dflash_controller import command_line

KNOWN = {*command_line.VARIABLES, "training_run_label", "training_run_expected_tok_s", "dflash_root", "dflash_config"}
PREFIXES = ("dflash_", "prune_", "training_run_")


def play(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run ansible-playbook as an operator does."""
    repo = Path(__file__).resolve().parents[3]
    program = str(Path(sys.executable).with_name("ansible-playbook"))
    return subprocess.run([program, *arguments], cwd=repo, capture_output=True, text=True, check=False)


@pytest.mark.parametrize(
    ("typed", "problem"),
    [
        ("runa", "runa: nothing reads it; did you mean run_a?"),
        ("stopnow", "stopnow: nothing reads it; did you mean stop_now?"),
        ("line", "line: nothing reads it; did you mean lines?"),
        ("json_ou", "json_ou: nothing reads it; did you mean json_out?"),
        ("label", "label: nothing reads it; did you mean training_run_label?"),
        ("training_run_lable", "training_run_lable: unknown variable; did you mean training_run_label?"),
        ("prune_zzz", "prune_zzz: unknown variable"),
    ],
)
def test_a_typo_is_reported_with_a_suggestion(typed: str, problem: str) -> None:
    assert command_line.unknown([typed], [], KNOWN, PREFIXES) == [problem]


def test_unrelated_variables_are_not_reported() -> None:
    others = ["vault_wandb_api_key", "ansible_user", "my_thing", "lab_state", "inside", "env", "scenario_arguments"]
    assert command_line.unknown(others, others, KNOWN, PREFIXES) == []
    assert command_line.unknown([], ["line", "label"], KNOWN, PREFIXES) == [], "an inventory may define any name"
    assert command_line.unknown([], ["dflash_rot"], KNOWN, PREFIXES) != []


@pytest.mark.parametrize(
    ("name", "parsed", "valid"),
    [
        ("lines", 0, True),
        ("lines", -1, False),
        ("lines", None, False),
        ("since", float("nan"), False),
        ("stop_now", False, True),
        ("prune_keep_runs", 0, False),
        ("run", "", False),
    ],
)
def test_values_outside_the_valid_range_are_refused(name: str, parsed: Any, valid: bool) -> None:
    problem = command_line.value_problem(name, parsed, parsed)
    assert (problem == "") is valid
    if not valid:
        assert problem.startswith(f"{name}={parsed!r}: cannot be used; give {command_line.VARIABLES[name].give}")


def test_a_variable_of_another_playbook_is_reported(repo: Path) -> None:
    playbooks = command_line.playbook_names([str(repo / "playbooks/compare.yml")], repo)
    assert command_line.unread(["run", "mine"], playbooks) == [
        "run: not read by compare; it reads run_a, run_b, json_out"
    ]
    assert command_line.unread(["run_a"], playbooks) == []
    assert command_line.playbook_names([str(repo / "molecule/proxmox/verify.yml")], repo) == []


def test_an_unknown_tag_is_reported() -> None:
    assert command_line.tag_problems(["lunch"], ["relaunch"], ()) == [
        "--tags lunch: no such tag in relaunch; relaunch.yml has stop, env, release, warmup, launch, verify"
    ]
    assert command_line.tag_problems(["launch", "all", "mine"], ["relaunch"], ("mine",)) == []
    assert command_line.tag_problems(["launch"], ["status"], ()) != []
    assert command_line.tag_problems(["anything"], [], ()) == []


def test_the_tables_match_the_playbooks(repo: Path) -> None:
    tasks = yaml.safe_load((repo / "playbooks/relaunch.yml").read_text())[1]["tasks"][0]["block"]
    assert {tag for task in tasks for tag in task["tags"]} == set(command_line.TAGS)
    for file in (repo / "playbooks").glob("*.yml"):
        for name, variable in command_line.VARIABLES.items():
            if re.search(rf"\b{name} (?:\| default|is defined)|: \"{{{{ {name} }}}}", file.read_text()):
                assert file.stem in variable.playbooks, (file.stem, name)
    for name, variable in command_line.VARIABLES.items():
        assert all((repo / f"playbooks/{playbook}.yml").is_file() for playbook in variable.playbooks), name


def test_one_message_names_every_problem_of_a_command_before_the_box_is_reached(tmp_path: Path) -> None:
    done = play(
        "playbooks/logs.yml",
        *("-e", f"dflash_root={tmp_path}/root", "-e", "lines=abc", "-e", "folow=5", "-e", "run_a=x", "--tags", "lunch"),
    )
    output = " ".join(done.stdout.split() + done.stderr.split())
    assert done.returncode != 0
    for problem in (
        "lines='abc': cannot be used; give a number of lines, 0 or more",
        "folow: nothing reads it; did you mean follow?",
        "run_a: not read by logs; it reads run, lines, since, follow, json_out",
        "--tags lunch: no such tag in logs",
    ):
        assert problem in output
    assert "Read the log" not in done.stdout
