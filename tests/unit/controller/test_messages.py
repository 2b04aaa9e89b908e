"""A playbook prints each message once, in plain lines."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

DEBUG = re.compile(r"^\s*(ansible\.builtin\.)?debug:", re.MULTILINE)


def play(repo: Path, root: Path, *arguments: str) -> str:
    """Run ansible-playbook in the checkout, for a box below `root`; return its output."""
    program = str(Path(sys.executable).with_name("ansible-playbook"))
    command = [program, *arguments, "-e", f"dflash_root={root}"]
    kept = {name: value for name, value in os.environ.items() if not name.startswith("ANSIBLE_")}
    done = subprocess.run(command, cwd=repo, capture_output=True, text=True, check=False, env=kept)
    return done.stdout + done.stderr


@pytest.mark.parametrize(
    ("arguments", "lines"),
    [
        (["playbooks/stop.yml"], ["  localhost | no run was ever launched on this box"]),
        (["playbooks/prune.yml"], ["localhost:", "would remove 0 paths, 0 B"]),
    ],
)
def test_a_playbook_prints_lines_or_panels(
    repo: Path, tmp_path: Path, arguments: list[str], lines: list[str]
) -> None:
    output = play(repo, tmp_path / "root", *arguments)
    assert "\n" + "\n".join(lines) + "\n" in output
    assert "msg:" not in output


@pytest.mark.parametrize(
    ("arguments", "failure"),
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
def test_a_failure_is_printed_once_with_its_remedy(
    repo: Path, tmp_path: Path, arguments: list[str], failure: list[str]
) -> None:
    output = play(repo, tmp_path / "root", *arguments)
    assert "fatal: [localhost]: FAILED! => \n" in output
    for text in failure:
        assert output.count(text) == 1, output
        assert f"\n  {text}" in output


def test_verbose_output_has_everything_that_ansible_prints(repo: Path, tmp_path: Path) -> None:
    assert "Origin: " in play(repo, tmp_path / "root", "playbooks/promote.yml", "-v")


def test_problems_remedies_and_log_lines_are_on_separate_lines(repo: Path) -> None:
    spec = importlib.util.spec_from_file_location("callback", repo / "plugins/callback/dflash.py")
    assert spec is not None and spec.loader is not None
    callback = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(callback)
    result = {"msg": "Nothing was launched.\na: b Remedy: c | tee (2) d\ne: f Remedy: g", "log_tail": ["last"]}
    assert callback.failure_lines(result).splitlines()[1:] == [
        "  Nothing was launched.",
        "  a: b",
        "  Remedy: c | tee (2) d",
        "  e: f",
        "  Remedy: g",
        "    last",
    ]


def test_each_printed_line_names_its_box(repo: Path, tmp_path: Path) -> None:
    playbook = tmp_path / "play.yml"
    playbook.write_text(
        "- {hosts: trainers, gather_facts: false, tasks: [{name: Print, dflash_print: {text: \"one\\ntwo\"}}]}\n"
    )
    assert "\n  localhost | one\n  localhost | two\n" in play(repo, tmp_path / "root", str(playbook))


def test_no_task_uses_debug(repo: Path) -> None:
    files = [*repo.glob("roles/*/tasks/*.yml"), *repo.glob("playbooks/**/*.yml")]
    assert [file.name for file in files if DEBUG.search(file.read_text())] == []


def test_a_closed_pipe_ends_the_playbook(repo: Path, tmp_path: Path) -> None:
    program = str(Path(sys.executable).with_name("ansible-playbook"))
    command = f"{program} playbooks/status.yml -e dflash_root={tmp_path}/root | head -n 1"
    done = subprocess.run(["bash", "-c", command], cwd=repo, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0


@pytest.mark.parametrize(("redirection", "reported"), [("> /dev/full", True), ("> /dev/full 2>&1", False)])
def test_an_output_that_cannot_be_written_ends_the_playbook(
    repo: Path, tmp_path: Path, redirection: str, reported: bool
) -> None:
    program = str(Path(sys.executable).with_name("ansible-playbook"))
    command = f"{program} playbooks/status.yml -e dflash_root={tmp_path}/root {redirection}"
    done = subprocess.run(["bash", "-c", command], cwd=repo, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 99  # as after Ctrl-C
    text = "standard output cannot be written: No space left on device. The playbook ends here"
    assert (text in done.stderr) is reported
    assert "Traceback" not in done.stderr


def test_an_unexpected_error_is_printed_with_its_location(repo: Path, tmp_path: Path) -> None:
    (tmp_path / "vars.yml").write_text('dflash_overrides: ["optimizer.max_steps={{ stepz }}"]\n')
    output = play(repo, tmp_path / "root", "deploy.yml", "-e", f"@{tmp_path}/vars.yml")
    assert "'stepz' is undefined" in output
    assert "vars.yml:1" in output
