"""Compare the JSON of status.yml with /proc, the environment's record and the metrics of a running run.

inspect_box.py ROOT STATUS.json
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

RECORD_KEYS = ("run_id", "label", "started_at", "operator", "host", "env_id", "lock_sha256", "packages", "release_id",
               "tree_hash", "config", "cache_id", "command")


def rows(path: Path) -> list[dict[str, Any]]:
    """Return the rows of a JSON Lines file."""
    return [json.loads(line) for line in path.read_text().splitlines() if line.strip()]


def environ(pid: int) -> dict[str, str]:
    """Return the environment of a process."""
    raw = Path(f"/proc/{pid}/environ").read_bytes().decode()
    return dict(item.split("=", 1) for item in raw.split("\0") if "=" in item)


def failures(root: Path, status: dict[str, Any]) -> list[str]:
    """Return the checks that fail."""
    found = []

    def check(name: str, passed: bool) -> None:
        if not passed:
            found.append(name)

    run = root / "runs" / status["run_id"]
    env = root / "envs" / status["env_id"]
    check("status is ok and running", status["ok"] and status["state"] == "running" and status["problems"] == [])
    check("status has pid, step and speed", bool(status["pid"]) and status["step"] > 20 and status["tok_s"] > 0)
    variables = environ(status["pid"])
    check("the process has the run's DFLASH_RUN_ID", variables.get("DFLASH_RUN_ID") == status["run_id"])
    command = Path(f"/proc/{status['pid']}/cmdline").read_bytes().split(b"\0")[0].decode()
    check(f"its python is the environment's, not {command}", command == str(env / "bin/python"))
    maps = Path(f"/proc/{status['pid']}/maps").read_text()
    torches = {line.split(maxsplit=5)[5] for line in maps.splitlines() if "libtorch" in line}
    # the second prefix is used when the environment was healed while the run was running
    prefixes = (f"{env}/", f"{env.with_name('.replaced-' + env.name)}-")
    check(f"its torch is the environment's: {torches}", bool(torches) and all(t.startswith(prefixes) for t in torches))
    foreign = {"MOLECULE_EPHEMERAL_DIRECTORY", "ANSIBLE_CONFIG"} & set(variables)
    check(f"it has no variables of the caller: {foreign}", not foreign)
    losses = [row["loss"] for row in rows(run / "metrics.jsonl")]
    check(f"the loss decreases: {losses[:3]} ... {losses[-3:]}", sum(losses[-5:]) < sum(losses[:5]))
    record = json.loads((run / "run.json").read_text())
    for key in RECORD_KEYS:
        check(f"run.json has {key}", key in record)
    check("env.json lists the files", len(json.loads((env / "env.json").read_text())["files"]) > 10000)
    before = (run / "train.log").stat().st_size, len(losses)
    time.sleep(15)
    after = (run / "train.log").stat().st_size, len(rows(run / "metrics.jsonl"))
    check(f"log and metrics grow: {before} {after}", after[0] > before[0] and after[1] > before[1])
    return found


def main() -> None:
    """Exit with an error that names every failed check."""
    root, status = Path(sys.argv[1]), json.loads(Path(sys.argv[2]).read_text())
    found = failures(root, status)
    if found:
        tail = (root / "runs" / status["run_id"] / "train.log").read_text()[-3000:]
        sys.exit("failed checks: " + "; ".join(found) + f"\nstatus: {status}\nlog:\n{tail}")


if __name__ == "__main__":
    main()
