"""Judge a live run from outside: what status.yml said against /proc, the environment's record and the metrics.

    inspect_box.py ROOT STATUS.json
"""
from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any


def rows(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines() if line.strip()]


def environ(pid: int) -> dict[str, str]:
    raw = Path(f"/proc/{pid}/environ").read_bytes().decode()
    return dict(item.split("=", 1) for item in raw.split("\0") if "=" in item)


def problems(root: Path, said: dict[str, Any]) -> list[str]:
    """Return what does not hold."""
    found = []

    def hold(what: str, true: bool) -> None:
        if not true:
            found.append(what)

    run = root / "runs" / said["run_id"]
    env = root / "envs" / said["env_id"]
    hold("status says ok and running", said["ok"] and said["state"] == "running" and said["problems"] == [])
    hold("status has pid, step and speed", bool(said["pid"]) and said["step"] > 20 and said["tok_s"] > 0)
    seen = environ(said["pid"])
    hold("the process carries the run's mark", seen.get("DFLASH_RUN_ID") == said["run_id"])
    command = Path(f"/proc/{said['pid']}/cmdline").read_bytes().split(b"\0")[0].decode()
    hold(f"its python is the environment's, not {command}", command == str(env / "bin/python"))
    maps = Path(f"/proc/{said['pid']}/maps").read_text()
    torches = {line.split(maxsplit=5)[5] for line in maps.splitlines() if "libtorch" in line}
    places = (f"{env}/", f"{env.with_name('.replaced-' + env.name)}-")  # the second when it was healed under the run
    hold(f"its torch is the environment's: {torches}", bool(torches) and all(one.startswith(places) for one in torches))
    foreign = {"MOLECULE_EPHEMERAL_DIRECTORY", "ANSIBLE_CONFIG"} & set(seen)
    hold(f"nothing of the caller's environment is in it: {foreign}", not foreign)
    losses = [row["loss"] for row in rows(run / "metrics.jsonl")]
    hold(f"the loss falls: {losses[:3]} ... {losses[-3:]}", sum(losses[-5:]) < sum(losses[:5]))
    record = json.loads((run / "run.json").read_text())
    for key in ("run_id", "label", "started_at", "operator", "host", "env_id", "lock_sha256", "packages", "release_id",
                "tree_hash", "config", "cache_id", "command"):
        hold(f"run.json names {key}", key in record)
    hold("env.json lists the files", len(json.loads((env / "env.json").read_text())["files"]) > 10000)
    before = (run / "train.log").stat().st_size, len(losses)
    time.sleep(15)
    after = (run / "train.log").stat().st_size, len(rows(run / "metrics.jsonl"))
    hold(f"log and metrics grow: {before} {after}", after[0] > before[0] and after[1] > before[1])
    return found


def main() -> None:
    """Exit non-zero with every problem."""
    root, said = Path(sys.argv[1]), json.loads(Path(sys.argv[2]).read_text())
    found = problems(root, said)
    if found:
        tail = (root / "runs" / said["run_id"] / "train.log").read_text()[-3000:]
        sys.exit("does not hold: " + "; ".join(found) + f"\nstatus: {said}\nlog:\n{tail}")


if __name__ == "__main__":
    main()
