"""Run the commands of docs/tutorial.md and replace the output below each of them.

    .venv/bin/python tools/tutorial_output.py [FILE]         about 20 minutes on an idle machine

Each `sh` block runs in the same shell, from the root of the checkout. A plain block right after it is replaced by the
output, without Ansible's headings; long output is shortened in the middle. `<!-- wait 600 -->` before a block waits for
that many seconds; a block after `<!-- not run -->` is skipped. A failed command ends the script and changes nothing.
"""

from __future__ import annotations

import re
import subprocess
import sys
import time
from pathlib import Path
from typing import IO

REPO = Path(__file__).resolve().parents[1]
PAGE = REPO / "docs/tutorial.md"
BLOCK = re.compile(
    r"(?P<head>(?:<!-- (?:wait (?P<wait>\d+)|(?P<skip>not run)) -->\n\n)?```sh\n(?P<script>.*?)```\n)"
    r"(?:\n```\n(?P<output>.*?)```\n)?",
    re.DOTALL,
)
HEADING = re.compile(r"(?:PLAY|TASK|ok:|changed:|skipping:|\[WARNING\]|localhost +: ok=|make\[|$)")
PROGRESS_BAR = re.compile(r".* left$")
FIRST, LAST = 6, 16


def run(shell: subprocess.Popen[str], script: str) -> list[str]:
    """Run a block in the shell and return the lines of its output.

    Raises:
        SystemExit: a command failed.
    """
    stdin, stdout = pipes(shell)
    stdin.write(f"{{ set -e\n{script}set +e\n}} </dev/null\necho\necho __END__\n")
    stdin.flush()
    lines: list[str] = []
    for line in stdout:
        if line == "__END__\n":
            return lines
        print(line, end="", flush=True)
        lines.append(line.rstrip())
    raise SystemExit(f"failed:\n{script}")


def pipes(shell: subprocess.Popen[str]) -> tuple[IO[str], IO[str]]:
    """Return stdin and stdout of the shell."""
    assert shell.stdin is not None
    assert shell.stdout is not None
    return shell.stdin, shell.stdout


def shortened(lines: list[str]) -> list[str]:
    """Return the lines without headings and progress bars, at most FIRST + LAST of them."""
    kept = [line for line in lines if not HEADING.match(line) and not PROGRESS_BAR.match(line)]
    return kept if len(kept) <= FIRST + LAST else [*kept[:FIRST], "  ...", *kept[-LAST:]]


def main(arguments: list[str]) -> int:
    """Run all blocks and rewrite the page."""
    page = Path(arguments[0]) if arguments else PAGE

    def replaced(block: re.Match[str]) -> str:
        if block["skip"]:
            return block[0]
        time.sleep(int(block["wait"] or 0))
        lines = shortened(run(shell, block["script"]))
        return block["head"] + ("\n```\n" + "\n".join(lines) + "\n```\n" if block["output"] is not None else "")

    shell = subprocess.Popen(
        ["bash"], cwd=REPO, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    text = BLOCK.sub(replaced, page.read_text(encoding="utf-8"))
    page.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
