"""What a person reads of a playbook: each sentence once, in plain lines."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

DEBUG = re.compile(r"^\s*(ansible\.builtin\.)?debug:", re.MULTILINE)


def typed(repo: Path, root: Path, *words: str) -> str:
    """Type ansible-playbook in the checkout, for a box below `root`; return all that it prints."""
    program = str(Path(sys.executable).with_name("ansible-playbook"))
    kept = {name: value for name, value in os.environ.items() if not name.startswith("ANSIBLE_")}
    done = subprocess.run(
        [program, *words, "-e", f"dflash_root={root}"], cwd=repo, capture_output=True, text=True, check=False, env=kept
    )
    return done.stdout + done.stderr


@pytest.mark.parametrize(
    ("words", "lines"),
    [
        (["playbooks/stop.yml"], ["  localhost | no run was ever launched on this box"]),
        (["playbooks/prune.yml"], ["localhost:", "would remove 0 paths, 0 B"]),
    ],
)
def test_what_a_playbook_says_is_a_line_or_a_panel(
    repo: Path, tmp_path: Path, words: list[str], lines: list[str]
) -> None:
    told = typed(repo, tmp_path / "root", *words)
    assert "\n" + "\n".join(lines) + "\n" in told
    assert "msg:" not in told


@pytest.mark.parametrize(
    ("words", "refusal"),
    [
        (["playbooks/promote.yml"], ["no run is current on this box.", "Remedy: deploy.yml starts a run; "]),
        (
            ["deploy.yml", "-e", "dflash_profile=foo", "-e", "python_env_hela=true"],
            ["Nothing was changed.", "(1) dflash_profile='foo': is unknown; ", "(2) python_env_hela: "],
        ),
        (
            ["deploy.yml", "-e", "dflash_profile='foo | bar (2) baz'"],
            ["Nothing was changed.", "(1) dflash_profile='foo | bar (2) baz': is unknown; "],
        ),
    ],
)
def test_a_refusal_is_told_once_with_its_remedy(
    repo: Path, tmp_path: Path, words: list[str], refusal: list[str]
) -> None:
    told = typed(repo, tmp_path / "root", *words)
    assert "fatal: [localhost]: FAILED! => \n" in told
    for text in refusal:
        assert told.count(text) == 1, told
        assert f"\n  {text}" in told


def test_a_refusal_is_told_with_everything_that_ansible_knows_when_that_is_asked(repo: Path, tmp_path: Path) -> None:
    assert "Origin: " in typed(repo, tmp_path / "root", "playbooks/promote.yml", "-v")


def test_each_problem_its_remedy_and_the_end_of_a_log_have_a_line_of_their_own(repo: Path) -> None:
    spec = importlib.util.spec_from_file_location("told", repo / "plugins/callback/dflash.py")
    assert spec is not None and spec.loader is not None
    told = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(told)
    result = {"msg": "Nothing was launched.\na: b Remedy: c | tee (2) d\ne: f Remedy: g", "log_tail": ["last"]}
    assert told.refusal(result).splitlines()[1:] == [
        "  Nothing was launched.",
        "  a: b",
        "  Remedy: c | tee (2) d",
        "  e: f",
        "  Remedy: g",
        "    last",
    ]


def test_each_line_that_is_said_is_one_of_its_box(repo: Path, tmp_path: Path) -> None:
    play = tmp_path / "play.yml"
    play.write_text(
        "- {hosts: trainers, gather_facts: false, tasks: [{name: Say, dflash_print: {text: \"one\\ntwo\"}}]}\n"
    )
    assert "\n  localhost | one\n  localhost | two\n" in typed(repo, tmp_path / "root", str(play))


def test_nothing_is_printed_by_debug(repo: Path) -> None:
    files = [*repo.glob("roles/*/tasks/*.yml"), *repo.glob("playbooks/**/*.yml")]
    assert [file.name for file in files if DEBUG.search(file.read_text())] == []


def test_a_reader_who_has_read_enough_ends_the_playbook(repo: Path, tmp_path: Path) -> None:
    program = str(Path(sys.executable).with_name("ansible-playbook"))
    words = f"{program} playbooks/status.yml -e dflash_root={tmp_path}/root | head -n 1"
    done = subprocess.run(["bash", "-c", words], cwd=repo, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0


@pytest.mark.parametrize(("where", "told"), [("> /dev/full", True), ("> /dev/full 2>&1", False)])
def test_an_output_that_cannot_be_written_ends_the_playbook(
    repo: Path, tmp_path: Path, where: str, told: bool
) -> None:
    program = str(Path(sys.executable).with_name("ansible-playbook"))
    words = f"{program} playbooks/status.yml -e dflash_root={tmp_path}/root {where}"
    done = subprocess.run(["bash", "-c", words], cwd=repo, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 99  # as after Ctrl-C
    text = "standard output cannot be written: No space left on device. The playbook ends here"
    assert (text in done.stderr) is told
    assert "Traceback" not in done.stderr


def test_what_breaks_off_is_told_with_its_place(repo: Path, tmp_path: Path) -> None:
    (tmp_path / "vars.yml").write_text('dflash_overrides: ["optimizer.max_steps={{ stepz }}"]\n')
    told = typed(repo, tmp_path / "root", "deploy.yml", "-e", f"@{tmp_path}/vars.yml")
    assert "'stepz' is undefined" in told
    assert "vars.yml:1" in told
