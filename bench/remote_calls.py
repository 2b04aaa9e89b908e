#!/usr/bin/env python3
"""Count the remote calls of each playbook on a box that trains; exit code 1 if one exceeds its limit.

    python bench/remote_calls.py                                          this machine, the default inventory
    python bench/remote_calls.py -- -i inventory/mine.yml                 another box
    python bench/remote_calls.py --log rollback=FILE -- -i ...            also count in an existing log

The script runs the playbooks one after the other, each in a new process; the last one stops the run. Every command and
every file that Ansible sends is a call, counted in Ansible's log (ANSIBLE_LOG_PATH, verbosity 3). Polls of a playbook
that waits are counted separately: all of dflash_job, all of the health check, and those of a followed log after the
first. In the lab (tests/lab) the logs of its sshd and its pct give the number of logins and of pct calls. --logs DIR
keeps the logs.
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
CALL = re.compile(r"<[^<>]+> (?:PCT: |SSH: )?(EXEC|PUT|FETCH) ")
MODULE = re.compile(r"Using module file \S*/(\w+)\.py")
HEALTH_CHECK = " TASK [training_run : health_check | "


@dataclass(frozen=True)
class Count:
    """Cost of one playbook.

    Args:
        calls: commands and files sent to the box.
        polls: calls made while waiting; the limits do not include them.
        logins: ssh logins, known in the lab only.
        pct_calls: calls of pct, known in the lab only.
        seconds: duration of the playbook; None if only its log was read.
    """

    calls: int
    polls: int
    logins: int | None = None
    pct_calls: int | None = None
    seconds: float | None = None


def count(log: str) -> Count:
    """Count the calls in an Ansible log of verbosity 3."""
    calls = polls = 0
    polling = health_check = follows = False
    for line in log.splitlines():
        if " TASK [" in line:
            health_check, polling, follows = HEALTH_CHECK in line, False, False
        elif found := MODULE.search(line):
            module = found.group(1)
            polling = health_check or module == "dflash_job" or (module == "dflash_logs_info" and follows)
            follows = True
        elif CALL.search(line):
            polls, calls = polls + polling, calls + (not polling)
    return Count(calls, polls)


def measure(playbook: str, options: list[str], lab: Lab | None, logs: Path) -> Count:
    """Run a playbook and count its calls.

    Raises:
        SystemExit: the playbook failed, or a deploy changed something.
    """
    before = lab_counts(lab)
    log = logs / f"{Path(playbook).stem}.log"
    log.unlink(missing_ok=True)  # Ansible appends
    started = time.monotonic()
    done = subprocess.run(
        [PLAYBOOK, playbook, *options],
        cwd=REPO,
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "ANSIBLE_LOG_PATH": str(log), "ANSIBLE_LOG_VERBOSITY": "3"},
    )
    seconds = time.monotonic() - started
    if done.returncode or (playbook == VERBS["deploy"] and "changed=0" not in done.stdout):
        raise SystemExit(f"{playbook} failed, or a deploy changed something:\n{done.stdout}{done.stderr}")
    found = count(log.read_text(encoding="utf-8", errors="replace"))
    if not lab:
        return Count(found.calls, found.polls, seconds=seconds)
    logins, pct_calls = (now - then for now, then in zip(lab_counts(lab), before, strict=True))
    return Count(found.calls, found.polls, logins, pct_calls, seconds)


def lab_counts(lab: Lab | None) -> list[int]:
    """Return the logins and the pct calls so far."""
    return [lab.logins(), len(lab.pct_calls())] if lab else [0, 0]


def table(counts: dict[str, Count]) -> str:
    """Return the figures as Markdown."""
    head = "| playbook | calls | limit | polls while waiting | logins | pct calls | seconds |"
    rows = [head, "|---|---|---|---|---|---|---|"]
    for name, cost in counts.items():
        seconds = cost.seconds and round(cost.seconds, 1)
        cells = [cost.calls, limit(name), cost.polls, cost.logins, cost.pct_calls, seconds]
        rows.append(f"| {name} | " + " | ".join("-" if cell is None else str(cell) for cell in cells) + " |")
    return "\n".join(rows)


def limit(name: str) -> int:
    """Return the most calls that a playbook may make."""
    return DEPLOY_CALLS if name == "deploy" else VERB_CALLS


def main() -> int:
    """Measure, print the table, compare with the limits."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--log", action="append", default=[], metavar="NAME=FILE", help="also count in this log")
    parser.add_argument("--lab", action="store_true", help="the box is in the lab: also count logins and pct calls")
    parser.add_argument("--logs", type=Path, help="folder for Ansible's logs")
    parser.add_argument("options", nargs="*", help="options for ansible-playbook, after --")
    arguments = parser.parse_args()
    counts = {}
    for name, _, file in (text.partition("=") for text in arguments.log):
        counts[name] = count(Path(file).read_text(encoding="utf-8", errors="replace"))
    lab = Lab(layout_from_environment()) if arguments.lab else None
    with tempfile.TemporaryDirectory() as folder:
        logs = arguments.logs or Path(folder)
        logs.mkdir(parents=True, exist_ok=True)
        for name, playbook in VERBS.items():
            counts[name] = measure(playbook, arguments.options, lab, logs)
    print(table(counts))
    problems = [
        f"{name}: {cost.calls} calls, the limit is {limit(name)}"
        for name, cost in counts.items()
        if not 0 < cost.calls <= limit(name)
    ]
    print("\n".join(problems), file=sys.stderr)
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
