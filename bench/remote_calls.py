#!/usr/bin/env python3
"""How often each playbook asks the box, on a box that trains; exits with 1 when one asks more often than it may.

    python bench/remote_calls.py                                          this machine, the default inventory
    python bench/remote_calls.py -- -i inventory/mine.yml                 another box
    python bench/remote_calls.py --log rollback=FILE -- -i ...            count in a log written before as well

Runs the playbooks below one after the other, each in a process of its own; the last one stops the run. Every command
and every file that Ansible sends is a call: it is counted in Ansible's own log (ANSIBLE_LOG_PATH, verbosity 3). Looks
that a playbook takes while it waits are counted apart: all of dflash_job, all of a proof of life, and those after the
first of a log that is followed. In the lab (tests/lab), its sshd and its pct are witnesses: logins, and ways into the
container. --logs DIR keeps the logs, which show what each call was.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

REPO = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(REPO / "tests/lab"))

from dflash_lab.lab import Lab  # noqa: E402
from dflash_lab.layout import layout_from_environment  # noqa: E402

PLAYBOOK = str(Path(sys.executable).parent / "ansible-playbook")
DEPLOY_CALLS, VERB_CALLS = 12, 5
VERBS = {
    "deploy": "deploy.yml",
    **{name: f"playbooks/{name}.yml" for name in ("status", "logs", "verify", "runs", "report", "compare")},
    **{name: f"playbooks/{name}.yml" for name in ("promote", "prune", "stop")},
}
ASKED = re.compile(r"<[^<>]+> (?:PCT: |SSH: )?(EXEC|PUT|FETCH) ")
MODULE = re.compile(r"Using module file \S*/(\w+)\.py")
PROOF = " TASK [training_run : health_check | "


@dataclass(frozen=True)
class Count:
    """What one playbook cost.

    Args:
        asked: commands and files that went to the box.
        waited: looks taken while waiting, which do not count.
        logins, ways: ssh logins and calls of pct, where the lab wrote them down.
        seconds: from the command to its end; None when only its log was read.
    """

    asked: int
    waited: int
    logins: int | None = None
    ways: int | None = None
    seconds: float | None = None


def count(log: str) -> Count:
    """Count the calls in an Ansible log of verbosity 3."""
    asked = waited = 0
    waits = proves = followed = False
    for line in log.splitlines():
        if " TASK [" in line:
            proves, waits, followed = PROOF in line, False, False
        elif found := MODULE.search(line):
            waits = proves or found.group(1) == "dflash_job" or (found.group(1) == "dflash_logs_info" and followed)
            followed = True
        elif ASKED.search(line):
            waited, asked = waited + waits, asked + (not waits)
    return Count(asked, waited)


def measure(playbook: str, words: list[str], lab: Lab | None, logs: Path) -> Count:
    """Run a playbook and count. Raises SystemExit when it fails, or when a deploy changed something."""
    before = witnesses(lab)
    log = logs / f"{Path(playbook).stem}.log"
    log.unlink(missing_ok=True)  # Ansible appends
    started = time.monotonic()
    done = subprocess.run(
        [PLAYBOOK, playbook, *words],
        cwd=REPO,
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "ANSIBLE_LOG_PATH": str(log), "ANSIBLE_LOG_VERBOSITY": "3"},
    )
    seconds = time.monotonic() - started
    if done.returncode or (playbook == VERBS["deploy"] and "changed=0" not in done.stdout):
        raise SystemExit(f"{playbook} did not do what is counted here:\n{done.stdout}{done.stderr}")
    told = count(log.read_text(encoding="utf-8", errors="replace"))
    if not lab:
        return Count(told.asked, told.waited, seconds=seconds)
    logins, ways = (now - then for now, then in zip(witnesses(lab), before, strict=True))
    return Count(told.asked, told.waited, logins, ways, seconds)


def witnesses(lab: Lab | None) -> list[int]:
    """Return (logins, pct calls) so far."""
    return [lab.logins(), len(lab.pct_calls())] if lab else [0, 0]


def table(told: dict[str, Count]) -> str:
    """Return the figures as Markdown."""
    head = "| playbook | calls | at most | looks while it waits | logins | pct | seconds |"
    rows = [head, "|---|---|---|---|---|---|---|"]
    for name, one in told.items():
        cells = [one.asked, allowed(name), one.waited, one.logins, one.ways, one.seconds and round(one.seconds, 1)]
        rows.append(f"| {name} | " + " | ".join("-" if cell is None else str(cell) for cell in cells) + " |")
    return "\n".join(rows)


def allowed(name: str) -> int:
    return DEPLOY_CALLS if name == "deploy" else VERB_CALLS


def main() -> int:
    """Measure, print, judge."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--log", action="append", default=[], metavar="NAME=FILE", help="count in this log too")
    parser.add_argument("--lab", action="store_true", help="the box is in the lab: ask its sshd and its pct too")
    parser.add_argument("--logs", type=Path, help="folder that keeps Ansible's logs")
    parser.add_argument("words", nargs="*", help="what ansible-playbook gets, behind --")
    arguments = parser.parse_args()
    told = {}
    for name, _, file in (text.partition("=") for text in arguments.log):
        told[name] = count(Path(file).read_text(encoding="utf-8", errors="replace"))
    lab = Lab(layout_from_environment()) if arguments.lab else None
    with tempfile.TemporaryDirectory() as folder:
        logs = arguments.logs or Path(folder)
        logs.mkdir(parents=True, exist_ok=True)
        for name, playbook in VERBS.items():
            told[name] = measure(playbook, arguments.words, lab, logs)
    print(table(told))
    wrong = [
        f"{name} asks {one.asked} times, at most {allowed(name)} are promised"
        for name, one in told.items()
        if not 0 < one.asked <= allowed(name)
    ]
    print("\n".join(wrong), file=sys.stderr)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
