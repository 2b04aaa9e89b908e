"""Run a command and save the end of its terminal output as an SVG picture.

    .venv/bin/python tools/terminal_picture.py FILE.svg --lines 40 -- .venv/bin/ansible-playbook deploy.yml

The command really runs, and its output is printed as well. The picture shows the command as title and the last --lines
lines, in Ansible's colours. The exit code is that of the command; a failed command leaves the picture as it was.
"""

from __future__ import annotations

import argparse
import io
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

from rich.console import Console
from rich.terminal_theme import MONOKAI
from rich.text import Text

WEB_FONT = re.compile(r"@font-face \{.*?\}\s*", re.DOTALL)


def run(command: list[str]) -> tuple[int, list[str]]:
    """Run a command, print its output while it runs, return its exit code and lines."""
    environment = os.environ | {"ANSIBLE_FORCE_COLOR": "1"}
    lines = []
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment) as job:
        assert job.stdout is not None
        for line in job.stdout:
            print(line, end="", flush=True)
            lines.append(line.rstrip("\n"))
    return job.returncode, lines


def picture(lines: list[str], *, title: str, width: int) -> str:
    """Return the lines, with their ANSI colours, as SVG."""
    console = Console(record=True, width=width, file=io.StringIO(), force_terminal=True)
    console.print(Text.from_ansi("\n".join(lines)), no_wrap=True, overflow="ellipsis")
    svg = console.export_svg(title=title, theme=MONOKAI, unique_id="terminal")
    return WEB_FONT.sub("", svg)  # without web fonts the picture loads nothing from the network


def main() -> int:
    """Run the command and write the picture."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("svg", type=Path, help="file to write")
    parser.add_argument("--lines", type=int, default=40, help="number of lines shown, counted from the end")
    parser.add_argument("--width", type=int, default=120, help="columns")
    parser.add_argument("command", nargs="+", help="command to run, after --")
    arguments = parser.parse_args()
    code, lines = run(arguments.command)
    if code == 0:
        shown = lines[-arguments.lines :]
        svg = picture(shown, title=shlex.join(arguments.command), width=arguments.width)
        arguments.svg.write_text(svg, encoding="utf-8")
    return code


if __name__ == "__main__":
    sys.exit(main())
