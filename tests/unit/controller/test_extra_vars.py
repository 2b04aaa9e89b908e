"""What is typed behind -e and --tags is read, or told with what would be; never silently ignored."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from dflash_controller import extra_vars

KNOWN = {*extra_vars.WORDS, "training_run_label", "training_run_expected_tok_s", "dflash_root", "dflash_config"}
PREFIXES = ("dflash_", "prune_", "training_run_")


def ask(*words: str) -> subprocess.CompletedProcess[str]:
    """Type a playbook as an operator does."""
    repo = Path(__file__).resolve().parents[3]
    program = str(Path(sys.executable).with_name("ansible-playbook"))
    return subprocess.run([program, *words], cwd=repo, capture_output=True, text=True, check=False)


@pytest.mark.parametrize(
    ("typed", "told"),
    [
        ("runa", "runa: nothing reads it; did you mean run_a?"),
        ("stopnow", "stopnow: nothing reads it; did you mean stop_now?"),
        ("line", "line: nothing reads it; did you mean lines?"),
        ("json_ou", "json_ou: nothing reads it; did you mean json_out?"),
        ("label", "label: nothing reads it; did you mean training_run_label?"),
        ("training_run_lable", "training_run_lable: there is no such variable; did you mean training_run_label?"),
        ("prune_zzz", "prune_zzz: there is no such variable"),
    ],
)
def test_what_looks_like_one_of_ours_is_told(typed: str, told: str) -> None:
    assert extra_vars.unknown([typed], [], KNOWN, PREFIXES) == [told]


def test_words_of_others_are_left_alone() -> None:
    others = ["vault_wandb_api_key", "ansible_user", "my_thing", "lab_state", "inside", "env", "walk_arguments"]
    assert extra_vars.unknown(others, others, KNOWN, PREFIXES) == []
    assert extra_vars.unknown([], ["line", "label"], KNOWN, PREFIXES) == [], "an inventory may hold any name"
    assert extra_vars.unknown([], ["dflash_rot"], KNOWN, PREFIXES) != []


@pytest.mark.parametrize(
    ("name", "parsed", "good"),
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
def test_a_value_is_judged_by_what_it_means(name: str, parsed: Any, good: bool) -> None:
    told = extra_vars.value_problem(name, parsed, parsed)
    assert (told == "") is good
    if not good:
        assert told.startswith(f"{name}={parsed!r}: cannot be used; give {extra_vars.WORDS[name].give}")


def test_a_word_of_another_playbook_is_told(repo: Path) -> None:
    verbs = extra_vars.verbs_of([str(repo / "playbooks/compare.yml")], repo)
    assert extra_vars.unread(["run", "mine"], verbs) == [
        "run: compare would not read it; it reads run_a, run_b, json_out"
    ]
    assert extra_vars.unread(["run_a"], verbs) == []
    assert extra_vars.verbs_of([str(repo / "molecule/proxmox/verify.yml")], repo) == []


def test_a_tag_that_no_part_has_is_told() -> None:
    assert extra_vars.tag_problems(["lunch"], ["relaunch"], ()) == [
        "--tags lunch: no part of relaunch has it; relaunch.yml has stop, env, release, warmup, launch, verify"
    ]
    assert extra_vars.tag_problems(["launch", "all", "mine"], ["relaunch"], ("mine",)) == []
    assert extra_vars.tag_problems(["launch"], ["status"], ()) != []
    assert extra_vars.tag_problems(["anything"], [], ()) == []


def test_the_tables_are_what_the_playbooks_read(repo: Path) -> None:
    told = yaml.safe_load((repo / "playbooks/relaunch.yml").read_text())[1]["tasks"][0]["block"]
    assert {tag for task in told for tag in task["tags"]} == set(extra_vars.TAGS)
    for file in (repo / "playbooks").glob("*.yml"):
        for name, word in extra_vars.WORDS.items():
            if re.search(rf"\b{name} (?:\| default|is defined)|: \"{{{{ {name} }}}}", file.read_text()):
                assert file.stem in word.verbs, (file.stem, name)
    for name, word in extra_vars.WORDS.items():
        assert all((repo / f"playbooks/{verb}.yml").is_file() for verb in word.verbs), name


def test_every_bad_word_of_a_command_is_told_in_one_message_before_the_box_is_asked(tmp_path: Path) -> None:
    done = ask(
        "playbooks/logs.yml",
        *("-e", f"dflash_root={tmp_path}/root", "-e", "lines=abc", "-e", "folow=5", "-e", "run_a=x", "--tags", "lunch"),
    )
    said = " ".join(done.stdout.split() + done.stderr.split())
    assert done.returncode != 0
    for told in (
        "lines='abc': cannot be used; give a number of lines, 0 or more",
        "folow: nothing reads it; did you mean follow?",
        "run_a: logs would not read it; it reads run, lines, since, follow, json_out",
        "--tags lunch: no part of logs has it",
    ):
        assert told in said
    assert "Read the log" not in done.stdout
