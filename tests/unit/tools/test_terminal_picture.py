"""Pictures of tools/terminal_picture.py show the output of a real command."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path


def make_picture(repo: Path, svg: Path, script: str) -> subprocess.CompletedProcess[str]:
    tool = [sys.executable, str(repo / "tools/terminal_picture.py"), str(svg), "--lines", "2"]
    return subprocess.run([*tool, "--", "sh", "-c", script], capture_output=True, text=True, check=False)


def test_picture_shows_the_last_lines_with_colours_and_no_web_font(repo: Path, tmp_path: Path) -> None:
    svg = tmp_path / "picture.svg"
    done = make_picture(repo, svg, r"printf 'first\nsecond\n\033[32mthird\033[0m\n'")
    assert done.returncode == 0, done.stderr
    assert "first" in done.stdout
    text = svg.read_text()
    assert "second" in text and "third" in text and "#98e024" in text
    assert ">first<" not in text
    assert "@font-face" not in text


def test_failed_command_leaves_the_picture_unchanged(repo: Path, tmp_path: Path) -> None:
    svg = tmp_path / "picture.svg"
    svg.write_text("old")
    assert make_picture(repo, svg, "echo broken; exit 3").returncode == 3
    assert svg.read_text() == "old"
