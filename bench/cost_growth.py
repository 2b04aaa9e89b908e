"""How a drafter step's cost grows with the context's length, the number of anchors and the rows; needs a GPU.

    TRAINER_ENV/bin/python bench/cost_growth.py --points 1:1024:512,2:2048:512 [--json FILE] [--cache-dir DIR]
    python3 bench/cost_growth.py --plot a.json,b.json docs/images/drafter-cost.svg

A point is rows:length:anchors. The second form needs no GPU and draws tokens a second and milliseconds of all points.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "trainer"))

CONFIG = Path(__file__).resolve().parent.parent / "trainer" / "configs" / "bench-27b.toml"


def main() -> int:
    """Measure the points, or draw what was measured."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--points", default="1:1024:512,1:2048:512,1:4096:512,1:8192:512", help="rows:length:anchors,..."
    )
    parser.add_argument("--repeats", type=int, default=8, help="steps that count, a point")
    parser.add_argument("--json", type=Path, help="file for the figures")
    parser.add_argument("--cache-dir", type=Path, help="compile caches")
    parser.add_argument("--plot", nargs=2, metavar=("FILES", "SVG"), help="draw measured points")
    arguments = parser.parse_args()
    if arguments.plot:
        points = [point for file in arguments.plot[0].split(",") for point in json.loads(Path(file).read_text())]
        Path(arguments.plot[1]).write_text(draw(points), encoding="utf-8")
        return 0
    results = []
    for words in arguments.points.split(","):
        rows, length, anchors = map(int, words.split(":"))
        results.append(measure(rows, length, anchors, arguments))
        print(results[-1], flush=True)
        if arguments.json:
            arguments.json.write_text(json.dumps(results, indent=2) + "\n", encoding="utf-8")
    return 0


def measure(rows: int, length: int, anchors: int, arguments: argparse.Namespace) -> dict[str, Any]:
    """`bench drafter` on one point, in this process."""
    from dflash_trainer.cli import set_cache_folders

    set_cache_folders(arguments.cache_dir)
    import torch
    from dflash_trainer.bench.drafter import bench_drafter
    from dflash_trainer.config_file import load_config

    values = {
        "drafter.devices": "['cuda:0']",
        "data.buckets": f"[{length}]",
        "data.batch_tokens": rows * length,
        "objective.num_anchors": anchors,
    }
    config = load_config(CONFIG, [f"{key}={value}" for key, value in values.items()])
    result: dict[str, Any] = bench_drafter(config, arguments.repeats)["results"][0]
    torch.cuda.empty_cache()
    return result


def draw(points: list[dict[str, Any]]) -> str:
    """Two panels of bars: milliseconds a step, tokens a second."""
    points = sorted(points, key=lambda p: (p["anchors"], p["rows"], p["length"]))
    panels = (("step_ms", "milliseconds a step"), ("tokens_per_second", "tokens a second"))
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
