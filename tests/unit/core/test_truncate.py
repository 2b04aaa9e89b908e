"""Shortened lists, texts and labels show that something was left out."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest
from dflash_controller import checkout
from dflash_ops import inputs
from dflash_ops.core import truncate
from dflash_ops.core.errors import OpsError
from dflash_ops.inputs import Input, InputStatus
from dflash_ops.run import runs

# a list that is cut and joined without the number of the omitted items
SILENT = re.compile(r"""[;,] ?['"]\.join\([^()\n]*\[:\w+\]\)""")


def test_shortened_lists_end_with_the_number_of_omitted_items() -> None:
    assert truncate.join_items(["a", "b"], 2) == "a; b"
    assert truncate.join_items(["a", "b", "c", "d"], 2) == "a; b; and 2 more"
    assert truncate.join_items([], 2) == ""
    assert truncate.first_lines(["  a", "  b", "  c"], 2, indent="  ") == ["  a", "  b", "  and 1 more"]
    assert truncate.shorten("abcdef", 6) == "abcdef"
    assert truncate.shorten("abcdefg", 6) == "abc..."


def test_uncommitted_files_are_counted(tmp_path: Path) -> None:
    def git(*arguments: str) -> None:
        subprocess.run(["git", "-C", str(tmp_path), *arguments], check=True, capture_output=True)

    git("init", "-q")
    (tmp_path / "trainer").mkdir()
    git("-c", "user.name=a", "-c", "user.email=a@b", "commit", "-q", "--allow-empty", "-m", "first")
    for number in range(22):
        (tmp_path / "trainer" / f"{number:02}.py").write_text("")
    git("add", ".")
    with pytest.raises(OpsError, match=r"^22 file\(s\) of trainer/ .*trainer/09\.py, and 12 more\."):
        checkout.choose(tmp_path, "HEAD", allow_dirty=False)


def test_problems_of_inputs_are_counted() -> None:
    many = tuple(f"file {number}" for number in range(25))
    error = inputs.problems_error([InputStatus(Input("dataset", Path("/d")), "changed", many, "", 0)])
    assert "25 problem(s)" in error.message
    assert error.message.endswith("file 19; and 5 more.")


def test_changed_label_is_reported() -> None:
    assert runs.label_note("lr3e-4") == ""
    assert runs.label_note("lr 3e-4!") == "the label 'lr 3e-4!' was changed to lr-3e-4"
    long = "x" * 50
    assert runs.label_note(long) == f"the label {long!r} was changed to {'x' * 40}, at most 40 characters"


def test_no_list_is_cut_without_a_count(repo: Path) -> None:
    files = [*(repo / "plugins").rglob("*.py")]
    assert [f"{file.name}: {found}" for file in files for found in SILENT.findall(file.read_text("utf-8"))] == []
