r"""Train a drafter of SmolLM2-135M for some minutes on the target's own answers, then measure real decoding.

    cd REPOSITORY; PYTHONPATH=trainer python3 bench/smollm2_ten_minutes.py \
        --target FILE.gguf --work DIR --json FILE [--minutes 10] [--answers 12000] [--device cuda:0]

Nothing is downloaded. Templates give the prompts and the target writes the answers (`prepare`). A short calibration run
sets the number of training steps, so that the schedule ends with the time (`train`). `evaluate` decodes in fp32, where
answers must be equal token for token, and in bf16. The JSON is rewritten after each part. The same command with the
same --work continues: complete data and finished runs are kept. After --limit minutes the current part is stopped.

--random uses a random target and random ids instead, which tests a box in a minute or two.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))
from template_prompts import write_prompts

_CALIBRATION_STEPS = 60
_COUNTED_FROM = 30
_HELD_OUT = 256

_CONFIG = """
[target]
path = {target}
dtype = {dtype}
devices = [{device}]

[drafter]
devices = [{device}]
dtype = {dtype}
num_layers = 5
sliding_window = 128
block_size = 8
num_captured = 5
mask_token_id = 16

[objective]
num_anchors = {anchors}
head_chunk = {head_chunk}

[data]
path = "train"
eval_path = "eval"
buckets = {buckets}
batch_tokens = {batch_tokens}
prefetch = 16

[optimizer]
lr = 1e-3
epochs = 100000

[runtime]
compile = {compile}
queue_depth = 4

[checkpoint]
every_steps = 1000000
keep = 2

[evaluation]
samples = 128
"""


@dataclass
class Job:
    """A measurement: its options, its figures so far, its start time."""

    options: argparse.Namespace
    report: dict[str, Any] = field(default_factory=dict)
    begun: float = field(default_factory=time.monotonic)

    @property
    def work(self) -> Path:
        """Return the folder for data, run and caches."""
        folder: Path = self.options.work
        return folder

    @property
    def cuda(self) -> bool:
        """Return True if the device is a GPU."""
        return str(self.options.device).startswith("cuda")

    def trainer(self, command_name: str, *arguments: str) -> float:
        """Run a command of the trainer and return its seconds; its output goes to stdout.

        Raises:
            subprocess.TimeoutExpired: `--limit` was reached; the command was stopped.
            subprocess.CalledProcessError: the command failed.
        """
        command = [sys.executable, "-m", "dflash_trainer", command_name]
        command += ["--config", str(self.work / "config.toml"), *arguments]
        print("$ " + " ".join(command[2:]), flush=True)
        started = time.monotonic()
        left = self.begun + self.options.limit * 60 - started
        with subprocess.Popen(command, env=os.environ | {"PYTHONUNBUFFERED": "1"}) as process:
            try:
                code = process.wait(max(1.0, left))
            except subprocess.TimeoutExpired:
                process.terminate()  # training writes a checkpoint and resumes at the next call
                process.wait()
                raise
        if code:
            raise subprocess.CalledProcessError(code, command)
        return time.monotonic() - started

    def save(self) -> None:
        """Write the figures so far."""
        self.options.json.write_text(json.dumps(self.report, indent=2) + "\n", encoding="utf-8")


def main() -> int:
    """Run all parts; return 0 if every part succeeded and the fp32 answers were equal."""
    job = Job(parse(sys.argv[1:]))
    job.work.mkdir(parents=True, exist_ok=True)
    job.report = {"ok": False, "problems": [], "machine": machine(job), "minutes": job.options.minutes}
    write_config(job)
    parts: list[tuple[str, Callable[[Job], dict[str, Any]]]] = [("data", make_data), ("training", train)]
    parts.append(("export", export))
    parts += [(f"decoding_{dtype}", evaluate(dtype)) for dtype in job.options.dtypes]
    for name, part in parts:
        started = time.monotonic()
        try:
            job.report[name] = part(job) | {"part_seconds": round(time.monotonic() - started, 1)}
        except (OSError, ValueError, subprocess.SubprocessError) as error:
            job.report["problems"].append(f"{name}: {error}")
            if name in ("data", "training"):
                break
        finally:
            job.save()
    job.report["ok"] = not job.report["problems"]
    job.save()
    print(summary(job.report), flush=True)
    return 0 if job.report["ok"] else 1


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument("--target", type=Path, help="SmolLM2-135M-Instruct as a GGUF file")
    source.add_argument("--random", action="store_true", help="random target and random ids")
    parser.add_argument("--work", type=Path, required=True, help="folder for data, run and caches")
    parser.add_argument("--json", type=Path, required=True, help="file for the figures")
    parser.add_argument("--minutes", type=float, default=10.0, help="minutes of training, without compilation")
    parser.add_argument("--limit", type=float, default=45.0, help="minutes of all parts; a part beyond them is stopped")
    parser.add_argument("--answers", type=int, default=12000, help="training answers to generate")
    parser.add_argument("--answer-tokens", type=int, default=192, help="longest answer in the data, in tokens")
    parser.add_argument("--answer-batch", type=int, default=1024, help="answers generated per batch")
    parser.add_argument("--device", default="cuda:0", help="cuda:0 or cpu")
    parser.add_argument("--prompts", type=int, default=32, help="held-out prompts to decode")
    parser.add_argument("--dtypes", nargs="+", default=["float32", "bfloat16"], help="dtypes to decode in")
    parser.add_argument("--new-tokens", type=int, default=128, help="longest decoded answer, in tokens")
    return parser.parse_args(arguments)


def machine(job: Job) -> dict[str, str]:
    """Return the device and the library versions."""
    import torch
    import transformers

    name = torch.cuda.get_device_name(job.options.device) if job.cuda else "cpu"
    return {"device": name, "torch": torch.__version__, "transformers": transformers.__version__}


def write_config(job: Job) -> None:
    """Write the run's TOML into the work folder."""
    options = job.options
    target = "random:smollm2-135m" if options.random else str(options.target.absolute())
    longest = 64 * -(-(options.answer_tokens + 64) // 64)
    values = {
        "target": json.dumps(target),
        "device": json.dumps(options.device),
        "dtype": json.dumps("bfloat16" if job.cuda else "float32"),
        "buckets": json.dumps([longest]),
        "batch_tokens": longest * (32 if job.cuda else 2),
        "anchors": 64 if job.cuda else 8,
        "head_chunk": 7168 if job.cuda else 256,
        "compile": json.dumps(job.cuda),
    }
    (job.work / "config.toml").write_text(_CONFIG.format(**values), encoding="utf-8")


def make_data(job: Job) -> dict[str, Any]:
    """Generate prompts from templates and answers by the target; training and held-out sets share no topic."""
    options = job.options
    counts = {"train": options.answers, "eval": min(_HELD_OUT, options.answers)}
    result: dict[str, Any] = {}
    for name, count in counts.items():
        if options.random:
            random_dataset(job.work / name, count, longest=options.answer_tokens)
            continue
        prompts = job.work / f"prompts-{name}.jsonl"
        result[f"{name}_prompts"] = write_prompts(prompts, count, held_out=name == "eval")
        arguments = ["--regenerate", "--max-new-tokens", str(options.answer_tokens)]
        arguments += ["--batch", str(options.answer_batch)]
        output = job.work / name
        if not output.exists():
            arguments += ["--input", str(prompts), "--output", str(output)]
            result[f"{name}_seconds"] = job.trainer("prepare", *arguments)
    return result


def random_dataset(folder: Path, count: int, *, longest: int) -> None:
    """Write samples of random ids and lengths; the first 16 ids are the prompt."""
    from dflash_trainer.data.arrow import write_samples

    draw = random.Random(count)
    folder.mkdir(parents=True, exist_ok=True)
    rows = []
    for number in range(count):
        length = draw.randint(32, longest)
        rows.append((f"r{number}", [draw.randrange(49152) for _ in range(length)], [0] * 16 + [1] * (length - 16)))
    write_samples(folder / "data-00000-of-00001.arrow", rows)


def train(job: Job) -> dict[str, Any]:
    """Calibrate, then train as many steps as fit into `--minutes`."""
    cache = str(job.work / "cache")
    first, run = job.work / "calibration", job.work / "run"
    steps = f"optimizer.max_steps={_CALIBRATION_STEPS if job.cuda else 4}"
    if not finished(first):
        job.trainer("train", "--run-dir", str(first), "--cache-dir", cache, "--set", steps)
    rows = metrics(first)
    counted = rows[min(_COUNTED_FROM, len(rows) // 2) :]
    pace = (counted[-1]["time"] - counted[0]["time"]) / max(1, len(counted) - 1)
    total = max(2, int(job.options.minutes * 60 / pace))
    every = max(1, total // 5)
    changes = (f"optimizer.max_steps={total}", f"evaluation.every_steps={every}", f"logging.every_steps={every}")
    overrides = [argument for change in changes for argument in ("--set", change)]
    paths = ["--run-dir", str(run), "--cache-dir", cache]
    with_start = None if finished(run) else job.trainer("train", *paths, *overrides)
    rows = metrics(run)
    held_out = [{"step": row["step"], "accept_len": row["eval_accept_len"]} for row in rows if "eval_accept_len" in row]
    last = rows[-20:]
    return {
        "steps": len(rows),
        "seconds": rows[-1]["time"] - rows[0]["time"],
        "seconds_with_start": with_start,
        "tokens": rows[-1]["tokens"],
        "epochs": rows[-1]["epoch"] + 1,
        "loss": sum(row["loss"] for row in last) / len(last),
        "accept_len": sum(row["accept_len"] for row in last) / len(last),
        "tok_s": rows[-1]["tokens"] / (rows[-1]["time"] - rows[0]["time"]),
        "held_out_accept_len": held_out,
        "recompiles": rows[-1]["recompiles"],
        "device_allocs": rows[-1]["device_allocs"],
    }


def finished(run: Path) -> bool:
    """Return True if a training run finished."""
    state = run / "state.json"
    return state.is_file() and json.loads(state.read_text(encoding="utf-8"))["phase"] == "finished"


def metrics(run: Path) -> list[dict[str, Any]]:
    """Return the rows of a run's metrics.jsonl."""
    return [json.loads(line) for line in (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]


def export(job: Job) -> dict[str, Any]:
    """Export the drafter for servers."""
    output = job.work / f"exported-{time.time_ns()}"
    job.trainer("export", "--checkpoint", str(job.work / "run"), "--output", str(output))
    return {}


def evaluate(dtype: str) -> Callable[[Job], dict[str, Any]]:
    """Return a part that evaluates the drafter in `dtype`, on CUDA without CUDA graphs if they fail."""

    def part(job: Job) -> dict[str, Any]:
        file = job.work / f"evaluation-{dtype}.json"
        arguments = ["--checkpoint", str(job.work / "run"), "--json", str(file)]
        arguments += ["--prompts", str(job.options.prompts)]
        arguments += ["--max-new-tokens", str(job.options.new_tokens)]
        arguments += ["--set", f"target.dtype={dtype}", "--set", f"drafter.dtype={dtype}"]
        arguments += ["--cache-dir", str(job.work / "cache")]
        try:
            job.trainer("evaluate", *arguments)
        except subprocess.CalledProcessError as error:
            if not job.cuda or file.exists():
                raise
            job.report["problems"].append(f"{dtype} with CUDA graphs: {error}")
            job.trainer("evaluate", *arguments, "--set", "target.cuda_graphs=false", "--set", "runtime.compile=false")
        result: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
        return result

    return part


def summary(report: dict[str, Any]) -> str:
    """Return the figures as text."""
    lines = [f"problem: {problem}" for problem in report["problems"]]
    training = report.get("training")
    if training:
        lines.append(
            f"trained {training['steps']} steps in {training['seconds']:.0f} s, {training['tokens']} tokens "
            f"({training['tok_s']:.0f} tok/s), loss {training['loss']:.3f}"
        )
    for dtype in ("float32", "bfloat16"):
        found = report.get(f"decoding_{dtype}")
        if found:
            real, held_out = found["decoding"], found["held_out"]["accept_len"]
            lines.append(
                f"{dtype}: held-out accept length {held_out:.3f}; decoding {real['accept_len']:.3f} tokens per step, "
                f"{real['plain']['tok_s']:.0f} -> {real['speculative']['tok_s']:.0f} tok/s (x{real['speed_up']:.2f}), "
                f"equal token for token: {real['equal']}"
            )
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
