"""Measure the cost of a drafter step against context length, number of anchors and rows.

    TRAINER_ENV/bin/python bench/cost_growth.py --json FILE [--points 1:1024:512,2:2048:512] [--seconds 480]
    python3 bench/cost_growth.py --plot a.json,b.json docs/images/drafter-cost.svg

A point is rows:length:anchors. FILE is written after each point, and points in it are not measured again, so the same
command continues after an interruption. A point that exceeds the GPU's memory is recorded as an error. No point starts
after --seconds. The second form needs no GPU and draws tokens per second and milliseconds of all points.
"""

from __future__ import annotations

import argparse
import gc
import json
import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "trainer"))

CONFIG = Path(__file__).resolve().parent.parent / "trainer" / "configs" / "bench-27b.toml"


POINTS = (
    "1:4096:512,1:1024:512,1:2048:512,1:8192:512,1:4096:128,1:4096:256,1:4096:1000,2:2048:512,2:4096:512,4:1024:512"
)


def main() -> int:
    """Measure the points, or draw the figures of earlier measurements."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--points", default=POINTS, help="rows:length:anchors,...")
    parser.add_argument("--repeats", type=int, default=8, help="measured steps per point")
    parser.add_argument("--seconds", type=float, default=480.0, help="start no point after this time")
    parser.add_argument("--config", type=Path, default=CONFIG, help="configuration with the shapes to measure")
    parser.add_argument("--device", default="cuda:0", help="cuda:N or cpu")
    parser.add_argument("--json", type=Path, help="file for the figures; points in it are not measured again")
    parser.add_argument("--cache-dir", type=Path, help="compile caches")
    parser.add_argument("--plot", nargs=2, metavar=("FILES", "SVG"), help="draw the points of these files")
    arguments = parser.parse_args()
    if arguments.plot:
        points = [point for file in arguments.plot[0].split(",") for point in json.loads(Path(file).read_text())]
        Path(arguments.plot[1]).write_text(draw(points), encoding="utf-8")
        return 0
    measure_all([parse_point(text) for text in arguments.points.split(",")], arguments)
    return 0


def parse_point(text: str) -> tuple[int, int, int]:
    """Parse rows:length:anchors."""
    rows, length, anchors = map(int, text.split(":"))
    return rows, length, anchors


def measure_all(points: list[tuple[int, int, int]], arguments: argparse.Namespace) -> None:
    """Measure each point that the file lacks until the time is up; write the file after each."""
    started = time.monotonic()
    file: Path | None = arguments.json
    results: list[dict[str, Any]] = json.loads(file.read_text()) if file is not None and file.is_file() else []
    known = {(found["rows"], found["length"], found["anchors"]) for found in results}
    for number, point in enumerate(points, start=1):
        if point in known:
            continue
        if time.monotonic() - started > arguments.seconds:
            print(f"{arguments.seconds:.0f} s are over. To continue with point {number}: the same command.", flush=True)
            return
        print(f"point {number}/{len(points)}: {':'.join(map(str, point))}", flush=True)
        results.append(measure(*point, arguments))
        print(results[-1], flush=True)
        if file is not None:
            file.write_text(json.dumps(results, indent=2) + "\n", encoding="utf-8")


def measure(rows: int, length: int, anchors: int, arguments: argparse.Namespace) -> dict[str, Any]:
    """Run `bench drafter` on one point in this process; return `error` instead of figures if memory runs out."""
    from dflash_trainer.cli import set_cache_folders

    set_cache_folders(arguments.cache_dir)
    import torch
    from dflash_trainer.bench.drafter import bench_drafter
    from dflash_trainer.config.load import load_config

    values = {
        "drafter.devices": f"['{arguments.device}']",
        "data.buckets": f"[{length}]",
        "data.batch_tokens": rows * length,
        "objective.num_anchors": anchors,
    }
    torch._dynamo.reset()  # the recompile limit is set for one run's buckets, not for ten points
    config = load_config(arguments.config, [f"{key}={value}" for key, value in values.items()])
    try:
        result: dict[str, Any] = bench_drafter(config, arguments.repeats)["results"][0]
    except torch.OutOfMemoryError as error:
        result = {"rows": rows, "length": length, "anchors": anchors, "error": str(error).splitlines()[0]}
    gc.collect()  # an exception's frames keep the tensors of its point alive
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
    return result


def draw(points: list[dict[str, Any]]) -> str:
    """Draw two bar charts as SVG: milliseconds per step, tokens per second."""
    points = [point for point in points if "error" not in point]
    points = sorted(points, key=lambda p: (p["anchors"], p["rows"], p["length"]))
    panels = (("step_ms", "milliseconds per step"), ("tokens_per_second", "tokens per second"))
    width, row = 720, 22
    height = (len(points) * row + 40) * len(panels)
    parts = [f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" font-family="sans-serif">']
    parts.append(f'<rect width="{width}" height="{height}" fill="white"/>')
    for panel, (key, title) in enumerate(panels):
        top = panel * (len(points) * row + 40) + 24
        most = max(point[key] for point in points)
        parts.append(f'<text x="8" y="{top - 6}" font-size="14">{title}</text>')
        for number, point in enumerate(points):
            y = top + number * row
            label = f"{point['rows']} x {point['length']}, {point['anchors']} anchors"
            bar = 420 * point[key] / most
            parts.append(f'<text x="8" y="{y + 15}" font-size="12">{label}</text>')
            parts.append(f'<rect x="190" y="{y + 3}" width="{bar:.1f}" height="{row - 6}" fill="#4878a8"/>')
            parts.append(f'<text x="{196 + bar:.1f}" y="{y + 15}" font-size="12">{point[key]:,.0f}</text>')
    return "\n".join([*parts, "</svg>", ""])


if __name__ == "__main__":
    sys.exit(main())
