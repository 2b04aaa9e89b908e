"""Compare the time from the command to the first training step: relaunch.yml against a start by hand.

    python bench/relaunch.py --root ~/.local/share/dflash --rounds 3 --json relaunch.json

By hand means `tmux new-session` with the start_training.sh of a run that the playbook launched; for another box give
`--shell 'ssh box'`. Both start from the same warm cache and the same checkpoint. The first step is the first line of
metrics.jsonl. The box must have a deployed run. Repeat the variables it was deployed with in `--extra-vars`, such as
'{"dflash_overrides": ["runtime.compile=true"]}'.
"""

from __future__ import annotations

import argparse
import json
import re
import shlex
import shutil
import statistics
import subprocess
import sys
import time
from pathlib import Path

REPO = Path(__file__).resolve().parents[1]
ANSIBLE = str(Path(sys.executable).parent / "ansible-playbook")


def playbook(root: Path, extra: str, *arguments: str) -> list[str]:
    """Return the argv of a playbook for this box."""
    return [ANSIBLE, *arguments, "-e", f"dflash_root={root}", "-e", f"dflash_workspace={root}", "-e", extra]


def stop(root: Path, extra: str) -> None:
    """Stop the current run."""
    subprocess.run(playbook(root, extra, "playbooks/stop.yml"), cwd=REPO, check=True, stdout=subprocess.DEVNULL)


def first_step(metrics: Path, timeout: float = 600.0) -> None:
    """Wait until metrics.jsonl has a line."""
    deadline = time.monotonic() + timeout
    while not (metrics.exists() and metrics.read_text().strip()):
        if time.monotonic() > deadline:
            raise SystemExit(f"no step in {metrics} within {timeout:.0f} s")
        time.sleep(0.02)


def by_playbook(root: Path, extra: str) -> float:
    """Return the seconds from `relaunch.yml --tags launch` to the first step of the new run."""
    before = (root / "current").readlink()
    started = time.perf_counter()
    child = subprocess.Popen(
        playbook(root, extra, "relaunch.yml", "--tags", "launch", "-e", "training_run_label=bench"),
        cwd=REPO,
        stdout=subprocess.DEVNULL,
    )
    while (root / "current").readlink() == before:
        if child.poll():
            raise SystemExit("relaunch.yml failed; run it by hand to see the cause")
        time.sleep(0.02)
    first_step((root / "current").resolve() / "metrics.jsonl")
    seconds = time.perf_counter() - started
    child.wait()
    return seconds


def by_hand(root: Path, shell: str) -> float:
    """Return the seconds from `tmux new-session` to the first step, with a copy of the last run's script."""
    run = (root / "current").resolve()
    folder = root / "by-hand"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    script = (run / "start_training.sh").read_text().replace(str(run), str(folder))
    (folder / "start_training.sh").write_text(re.sub(r"DFLASH_RUN_ID=\S+", "DFLASH_RUN_ID=by-hand", script))
    socket = folder / "tmux.sock"
    command = [
        *shlex.split(shell),
        "tmux",
        "-S",
        str(socket),
        "new-session",
        "-d",
        "bash",
        str(folder / "start_training.sh"),
    ]
    started = time.perf_counter()
    subprocess.run(command, check=True)
    first_step(folder / "metrics.jsonl")
    seconds = time.perf_counter() - started
    subprocess.run(["kill", (folder / "pid").read_text().strip()], check=True)
    while not (folder / "exit.json").exists():
        time.sleep(0.1)
    return seconds


def main() -> None:
    """Measure both starts in turn, print and write the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--root", type=Path, required=True)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--shell", default="", help="prefix that reaches the box, such as 'ssh box'")
    parser.add_argument("--extra-vars", default="{}", help="extra variables: JSON, or @FILE")
    parser.add_argument("--json", type=Path, required=True)
    arguments = parser.parse_args()
    root = arguments.root.expanduser().absolute()
    rows: dict[str, list[float]] = {"relaunch": [], "by_hand": []}
    stop(root, arguments.extra_vars)
    for _ in range(arguments.rounds):
        rows["relaunch"].append(round(by_playbook(root, arguments.extra_vars), 2))
        stop(root, arguments.extra_vars)
        rows["by_hand"].append(round(by_hand(root, arguments.shell), 2))
    middle = {name: statistics.median(values) for name, values in rows.items()}
    report = {**rows, "median": middle, "ratio": round(middle["relaunch"] / middle["by_hand"], 3)}
    arguments.json.write_text(json.dumps(report, indent=2) + "\n")
    print(json.dumps(report, indent=2))


if __name__ == "__main__":
    main()
