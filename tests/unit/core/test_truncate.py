"""What is cut says so, everywhere: lists, texts, labels."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest
from dflash_controller import checkout
from dflash_ops import inputs
from dflash_ops.core import truncate
from dflash_ops.core.errors import OpsError
from dflash_ops.inputs import Input, Look
from dflash_ops.run import runs

# a list that is joined to a sentence after it was cut, by whatever does not say so
SILENT = re.compile(r"""[;,] ?['"]\.join\([^()\n]*\[:\w+\]\)""")


def test_a_list_says_how_many_more_there_are() -> None:
    assert truncate.listed(["a", "b"], 2) == "a; b"
    assert truncate.listed(["a", "b", "c", "d"], 2) == "a; b; and 2 more"
    assert truncate.listed([], 2) == ""
    assert truncate.first_lines(["  a", "  b", "  c"], 2, indent="  ") == ["  a", "  b", "  and 1 more"]
    assert truncate.shortened("abcdef", 6) == "abcdef"
    assert truncate.shortened("abcdefg", 6) == "abc..."


def test_files_that_are_not_committed_are_counted_to_the_last(tmp_path: Path) -> None:
    def git(*words: str) -> None:
        subprocess.run(["git", "-C", str(tmp_path), *words], check=True, capture_output=True)

    git("init", "-q")
    (tmp_path / "trainer").mkdir()
    git("-c", "user.name=a", "-c", "user.email=a@b", "commit", "-q", "--allow-empty", "-m", "first")
    for number in range(22):
        (tmp_path / "trainer" / f"{number:02}.py").write_text("")
    git("add", ".")
    with pytest.raises(OpsError, match=r"^22 file\(s\) of trainer/ .*trainer/09\.py, and 12 more\."):
        checkout.choose(tmp_path, "HEAD", allow_dirty=False)


def test_problems_of_inputs_are_counted_to_the_last() -> None:
    many = tuple(f"file {number}" for number in range(25))
    told = inputs.refusal([Look(Input("dataset", Path("/d")), "changed", many, "", 0)])
    assert "25 problem(s)" in told.message
    assert told.message.endswith("file 19; and 5 more.")


def test_a_label_that_could_not_be_kept_says_what_it_became() -> None:
    assert runs.label_note("lr3e-4") == ""
    assert runs.label_note("lr 3e-4!") == "the label 'lr 3e-4!' was changed to lr-3e-4"
    long = "x" * 50
    assert runs.label_note(long) == f"the label {long!r} was changed to {'x' * 40}, at most 40 characters"


def test_no_list_is_cut_in_silence(repo: Path) -> None:
    files = [*(repo / "plugins").rglob("*.py")]
    assert [f"{file.name}: {found}" for file in files for found in SILENT.findall(file.read_text("utf-8"))] == []
