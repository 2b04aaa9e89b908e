"""Run one benchmark stage and write its JSON file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dflash_trainer.bench.drafter import bench_drafter
from dflash_trainer.bench.pipeline import bench_pipeline
from dflash_trainer.bench.target import bench_target

if TYPE_CHECKING:
    from dflash_trainer.config.schema import Config

STAGES = {"drafter": bench_drafter, "target": bench_target, "pipeline": bench_pipeline}


def run_bench(stage: str, config: Config, file: Path | None, repeats: int) -> dict[str, Any]:
    """Measure `stage`, print the figures, write them to `file`."""
    result = STAGES[stage](config, repeats)
    text = json.dumps(result, indent=2)
    if file is not None:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text + "\n", encoding="utf-8")
    print(text, flush=True)
    return result
