"""Stand-in for the trainer with its command line and files, for tests of process handling.

It trains nothing. It writes state.json, metrics.jsonl and checkpoints like the trainer, and ends as the override
`test.how=...` requests. Tests with it cover how the box handles a process, never what a model learns.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

FORK = """
import os, signal, sys, time
for number in (signal.SIGHUP, signal.SIGTERM, signal.SIGINT):
    signal.signal(number, signal.SIG_IGN)
os.setsid()
print(os.getpid(), flush=True)
time.sleep(600)
"""


def options(arguments: list[str]) -> dict[str, Any]:
    found: dict[str, Any] = {"set": {}}
    iterator = iter(arguments)
    for argument in iterator:
        if argument == "--set":
            key, _, value = next(iterator).partition("=")
            found["set"][key] = value
        elif argument.startswith("--") and argument != "--json":
            found[argument.removeprefix("--")] = next(iterator)
    return found


def config(arguments: dict[str, Any]) -> dict[str, Any]:
    if arguments["config"].endswith(".json"):
        resolved: dict[str, Any] = json.loads(Path(arguments["config"]).read_text())
        return resolved
    values: dict[str, Any] = {
        "target": {"path": "random:tiny", "devices": ["cpu"]},
        "drafter": {"devices": ["cpu"], "num_layers": 2},
        "objective": {"kind": "decay"},
        "data": {"path": str(Path.cwd() / "data"), "buckets": [64]},
        "optimizer": {"lr": 1e-3, "max_steps": 400},
        "runtime": {"compile": True},
        "checkpoint": {"every_steps": 5, "keep": 3, "s3_uri": ""},
        "logging": {"wandb": "disabled"},
        "evaluation": {},
        "test": {"how": "train", "pause": "0.05"},
    }
    for key, value in arguments["set"].items():
        section, _, name = key.partition(".")
        if section not in values:
            print(f"config error: {key} = {value}: unknown key; see docs/trainer-reference.md", file=sys.stderr)
            raise SystemExit(2)
        values[section][name] = value
    return values


def write(path: Path, value: object) -> None:
    temporary = path.with_name(f".{path.name}.tmp")
    temporary.write_text(json.dumps(value))
    temporary.replace(path)


class Stop:
    """Set by SIGTERM."""

    requested = False


def checkpoint(run: Path, step: int) -> None:
    folder = run / "checkpoints" / f"step-{step:08d}"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "model.safetensors").write_text("weights")
    (folder / "index.json").write_text(json.dumps({"step": step, "files": {"model.safetensors": {"size": 7}}}))
    (run / "checkpoints" / "latest").write_text(folder.name)


def first_step(run: Path, source: str) -> int:
    folders = [run / "checkpoints", *([Path(source)] if source else [])]
    steps = [int(path.name[5:]) for folder in folders for path in folder.glob("step-*")]
    return max(steps, default=0)


def write_state(run: Path, phase: str, step: int, total: int) -> None:
    write(
        run / "state.json",
        {
            "phase": phase,
            "detail": "",
            "done": step,
            "total": total if phase == "training" else 0,  # like the trainer, which counts differently in each phase
            "total_steps": total,
            "step": step,
            "pid": os.getpid(),
            "updated_at": time.time(),
        },
    )


def train(arguments: dict[str, Any]) -> int:
    values = config(arguments)
    run, test = Path(arguments["run-dir"]), values["test"]
    run.mkdir(parents=True, exist_ok=True)
    total, pause, how = int(values["optimizer"]["max_steps"]), float(test["pause"]), test["how"]
    signal.signal(signal.SIGTERM, lambda *_: setattr(Stop, "requested", True))
    (run / "environ.json").write_text(json.dumps(dict(os.environ)))
    if how == "deaf":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if how == "children":
        for _ in range(2):
            subprocess.Popen([sys.executable, "-c", FORK], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
        listener = socket.create_server(("127.0.0.1", 0))
        (run / "port").write_text(str(listener.getsockname()[1]))
    step = first_step(run, arguments.get("resume-from", ""))
    print(f"phase training: from step {step}", flush=True)
    while step < total:
        step += 1
        write_state(run, "training", step, total)
        with (run / "metrics.jsonl").open("a") as stream:
            stream.write(
                json.dumps(
                    {
                        "step": step,
                        "time": time.time(),
                        "loss": 5.0 / step,
                        "accept_len": 1 + step / 100,
                        "lr": 1e-3,
                        "tok_s": float(test.get("tok_s", 1000)),
                        "queue_depth": 1,
                        "recompiles": int(test.get("recompiles", 0)),
                        "skipped_batches": int(test.get("skipped", 0)),
                    }
                )
                + "\n"
            )
        print(f"step {step}/{total}")  # not flushed: the start script must set PYTHONUNBUFFERED
        if step % int(values["checkpoint"]["every_steps"]) == 0:
            checkpoint(run, step)
        if how == "exit3" and step == 3:
            print("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB", flush=True)
            return 3
        if how == "kill9" and step == 3:
            os.kill(os.getpid(), signal.SIGKILL)
        if how == "full" and step == 7:
            print("OSError: [Errno 28] No space left on device", flush=True)
            return 4
        if how == "hang" and step == 3:
            time.sleep(600)
        if Stop.requested:
            checkpoint(run, step)
            write_state(run, "stopped", step, total)
            return 0
        time.sleep(pause)
    checkpoint(run, step)
    write_state(run, "finished", step, total)
    return 0


def warmup(arguments: dict[str, Any]) -> int:
    """Write one file per shape to the cache folder; an existing correct file is a hit."""
    values, folder = config(arguments), Path(arguments["cache-dir"]) / "inductor"
    assert os.environ["TORCHINDUCTOR_CACHE_DIR"] == str(folder)
    folder.mkdir(parents=True, exist_ok=True)
    test, hits, misses = values["test"], 0, 0
    if "ends" in test:
        print(test.get("says", "no dataset there"), flush=True)
        return int(test["ends"])
    names = [f"l{values['drafter']['num_layers']}-s{number}" for number in range(3)]
    for number, name in enumerate(names, start=1):
        file, content = folder / name, f"code of {name}\n" * 100
        print(f"compiling {number}/{len(names)} drafter[0] cpu S=64 forward+backward", flush=True)
        if test.get("second") == "fails" and file.exists():
            print("RuntimeError: Detected recompile when torch.compile stance is 'fail_on_recompile'", flush=True)
            return 6
        if file.exists() and file.read_text(errors="replace") != content and test.get("garbage") == "crashes":
            print("EOFError: Ran out of input (inductor)", flush=True)
            return 6
        if file.exists() and file.read_text(errors="replace") == content and test.get("second") != "misses":
            hits += 1
        else:
            misses += "uncounted" not in test
            time.sleep(float(test.get("compile", 0)))
            file.write_text(content)
        print(f"warmup {number}/{len(names)} drafter[0] cpu S=64 forward+backward 0.1 s", flush=True)
    write(
        Path(arguments["report"]),
        {
            "ok": True,
            "seconds": 0.1 + misses,
            "misses": misses,
            "torch": "none",
            "cuda": None,
            "gpus": [],
            "shapes": [{"device": "cpu", "worker": "drafter[0]", "bucket": 64, "seconds": 0.1}],
            "counters": {"fxgraph_cache_hit": hits, "fxgraph_cache_miss": misses, "fxgraph_cache_bypass": 0},
        },
    )
    return 0


def main() -> int:
    verb, arguments = sys.argv[1], options(sys.argv[2:])
    if verb == "config":
        gpus = int(arguments["set"].get("test.gpus", 0))
        print(
            json.dumps(
                {
                    "ok": True,
                    "config": config(arguments),
                    "needs": {
                        "target_workers": 1,
                        "drafter_workers": 1,
                        "devices": ["cpu"],
                        "gpus": gpus,
                        "checkpoint_bytes": 1 << 20,
                        "target_path": None,
                        "data_path": arguments["set"].get("data.path", ""),
                    },
                    "paths": {},
                }
            )
        )
        return 0
    return warmup(arguments) if verb == "warmup" else train(arguments)


if __name__ == "__main__":
    sys.exit(main())
