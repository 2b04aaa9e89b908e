"""Differences between two runs, the most likely cause of a changed speed or result first."""

from __future__ import annotations

import dataclasses
import difflib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from ..core import truncate
from ..core.paths import Layout
from ..run import metrics, runs

DIFF_LINES = 200
SPEED_PACKAGES = ("torch", "triton", "flash-linear-attention", "fla-core", "causal-conv1d", "transformers", "numpy")
SPEED_KEYS = (
    "runtime.compile",
    "runtime.gradient_checkpointing",
    "runtime.queue_depth",
    "target.fast_path",
    "target.cuda_graphs",
    "target.devices",
    "drafter.devices",
    "target.dtype",
    "drafter.dtype",
    "data.buckets",
    "data.batch_tokens",
    "objective.num_anchors",
    "objective.head_chunk",
    "objective.head_precision",
    "drafter.num_layers",
    "drafter.block_size",
)


@dataclasses.dataclass(frozen=True)
class Difference:
    """One difference between two runs.

    Args:
        area: gpu, driver, host, cache, packages, environment, config, inputs, variables or code.
        what: the key, package or file.
        a: its value in run A; None: absent.
        b: its value in run B.
        weight: how likely it explains a changed speed, 0 to 100.
    """

    area: str
    what: str
    a: Any
    b: Any
    weight: int

    def as_text(self) -> str:
        """Return `config: runtime.compile True -> False`."""
        if self.area == "code" and self.a == self.b:
            return f"code: {self.what} {self.a}"
        if self.a is None:
            return f"{self.area}: {self.what} added ({_short(self.b)})"
        if self.b is None:
            return f"{self.area}: {self.what} removed (was {_short(self.a)})"
        return f"{self.area}: {self.what} {_short(self.a)} -> {_short(self.b)}"


def _short(value: Any) -> str:
    return truncate.shorten(str(value), 80)


def compare(layout: Layout, a: runs.Run, b: runs.Run) -> dict[str, Any]:
    """Return `{"run_a", "run_b", "speed", "differences", "code"}`, the most likely cause first."""
    found = [*_hardware(a, b), *_cache(a, b), *_packages(a, b), *_config(a, b), *_inputs(a, b), *_variables(a, b)]
    code = code_diff(layout, str(a.record.get("release_id")), str(b.record.get("release_id")))
    found += [Difference("code", name, "changed", "changed", 60) for name in code["files"]]
    if not code["files"] and a.record.get("release_id") != b.record.get("release_id") and code["missing"]:
        found.append(Difference("code", "release", a.record.get("release_id"), b.record.get("release_id"), 55))
    found.sort(key=lambda item: (-item.weight, item.area, item.what))
    return {
        "run_a": a.run_id,
        "run_b": b.run_id,
        "speed": {"a": speed_of(a), "b": speed_of(b)},
        "differences": [{**dataclasses.asdict(item), "text": item.as_text()} for item in found],
        "code": code,
    }


def speed_of(run: runs.Run) -> dict[str, Any]:
    """Return the speed and the newest metrics of a run."""
    rows = metrics.read_metrics(run.metrics)
    speed = metrics.speed(rows, window=runs.speed_window(run))
    last = rows[-1] if rows else {}
    return {
        "tok_s": speed.now,
        "best_tok_s": speed.best,
        "steps": len(rows),
        "step": last.get("step"),
        "loss": last.get("loss"),
        "accept_len": last.get("accept_len"),
        "recompiles": last.get("recompiles"),
        "drafter_ms": last.get("drafter_ms"),
        "target_tok_s": last.get("target_tok_s"),
        "queue_depth": last.get("queue_depth"),
    }


def _pair(a: runs.Run, b: runs.Run, key: str) -> tuple[Any, Any]:
    return a.record.get(key), b.record.get(key)


def _hardware(a: runs.Run, b: runs.Run) -> Iterable[Difference]:
    for key, area, weight in (
        ("gpus", "gpu", 95),
        ("driver", "driver", 70),
        ("hardware", "gpu", 90),
        ("host", "host", 40),
    ):
        before, after = _pair(a, b, key)
        if before != after:
            yield Difference(area, key, before, after, weight)


def _cache(a: runs.Run, b: runs.Run) -> Iterable[Difference]:
    before, after = _pair(a, b, "cache_state")
    if before != after:
        yield Difference("cache", "state at launch", before, after, 92)
    before, after = _pair(a, b, "cache_id")
    if before != after:
        yield Difference("cache", "cache_id", before, after, 45)


def _packages(a: runs.Run, b: runs.Run) -> Iterable[Difference]:
    before, after = dict(a.record.get("packages") or {}), dict(b.record.get("packages") or {})
    for name in sorted({*before, *after}):
        if before.get(name) != after.get(name):
            weight = 88 if name in SPEED_PACKAGES else 50
            yield Difference("packages", name, before.get(name), after.get(name), weight)
    before_drift, after_drift = list(a.record.get("drift") or ()), list(b.record.get("drift") or ())
    if before_drift != after_drift:
        yield Difference("environment", "drift from its record", before_drift or None, after_drift or None, 93)


def flat(config: Mapping[str, Any], *, trainer: str = "") -> dict[str, Any]:
    """Return the configuration as `{"section.key": value}`, with paths below the release relative to it."""
    found = {}
    for section, values in config.items():
        for key, value in dict(values).items():
            found[f"{section}.{key}"] = value.replace(trainer, "") if trainer and isinstance(value, str) else value
    return found


def _config(a: runs.Run, b: runs.Run) -> Iterable[Difference]:
    before = flat(a.record.get("config") or {}, trainer=str(a.record.get("trainer_folder") or ""))
    after = flat(b.record.get("config") or {}, trainer=str(b.record.get("trainer_folder") or ""))
    for key in sorted({*before, *after}):
        if before.get(key) != after.get(key):
            yield Difference("config", key, before.get(key), after.get(key), 85 if key in SPEED_KEYS else 35)


def _inputs(a: runs.Run, b: runs.Run) -> Iterable[Difference]:
    before, after = (dict(run.record.get("inputs") or {}) for run in (a, b))
    for name in sorted({*before, *after}):
        pair = [dict(side.get(name) or {}).get("fingerprint") for side in (before, after)]
        if pair[0] != pair[1]:
            yield Difference("inputs", name, pair[0], pair[1], 66 if name == "weights" else 65)


def _variables(a: runs.Run, b: runs.Run) -> Iterable[Difference]:
    before, after = dict(a.record.get("extra_environment") or {}), dict(b.record.get("extra_environment") or {})
    for name in sorted({*before, *after}):
        if before.get(name) != after.get(name):
            yield Difference("variables", name, before.get(name), after.get(name), 80)


def code_diff(layout: Layout, release_a: str, release_b: str) -> dict[str, Any]:
    """Return `{"files", "diff", "missing"}` between the Python and TOML files of two releases."""
    if release_a == release_b:
        return {"files": [], "diff": [], "missing": []}
    tops = {release: layout.release(release) / "trainer" for release in (release_a, release_b)}
    missing = [release for release, top in tops.items() if not top.is_dir()]
    if missing:
        return {"files": [], "diff": [], "missing": missing}
    before, after = (_texts(tops[release]) for release in (release_a, release_b))
    names = [name for name in sorted({*before, *after}) if before.get(name) != after.get(name)]
    lines: list[str] = []
    for name in names:
        lines += difflib.unified_diff(
            before.get(name, []), after.get(name, []), f"{release_a}/{name}", f"{release_b}/{name}", lineterm="", n=2
        )
    rest = [f"... {len(lines) - DIFF_LINES} more lines"] if len(lines) > DIFF_LINES else []
    return {"files": names, "diff": [*lines[:DIFF_LINES], *rest], "missing": []}


def _texts(top: Path) -> dict[str, list[str]]:
    found = [path for suffix in ("py", "toml") for path in top.rglob(f"*.{suffix}")]
    return {path.relative_to(top).as_posix(): path.read_text(errors="replace").splitlines() for path in found}
