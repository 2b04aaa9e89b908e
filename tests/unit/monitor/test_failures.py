"""Catalogue of known failures: complete entries, correct matches, generated files up to date."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from dflash_ops.monitor import failures

LINES = {
    "fx-trace-race": "RuntimeError: Detected that you are using FX to symbolically trace a dynamo-optimized function",
    "autotuner-race": "TypeError: 'NoneType' object is not a mapping",
    "recompile-limit": "W1129 torch._dynamo hit config.recompile_limit (8)",
    "recompile-after-warmup": "RuntimeError: Detected recompile when torch.compile stance is 'fail_on_recompile'",
    "flex-uncompiled": "UserWarning: flex_attention called without torch.compile() - this will use an unfused",
    "fast-path-missing": "The fast path is not available because one of the required library is not installed.",
    "accelerate-missing": "ValueError: Using a `device_map` requires `accelerate`. You can install it",
    "driver-too-old": "RuntimeError: The NVIDIA driver is too old (found version 12040)",
    "extension-mismatch": "ImportError: causal_conv1d_cuda.so: undefined symbol: _ZN3c106detail14torchCheckFail",
    "gpu-out-of-memory": "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has",
    "cache-bypassed": "Bypassing FX Graph Cache because 'can't cache HigherOrderOp'",
    "disk-full": "OSError: [Errno 28] No space left on device: 'checkpoints'",
    "gpu-lost": "NVRM: Xid (PCI:0000:3b:00): 79, pid=1234, GPU has fallen off the bus.",
    "oom-killed": "Out of memory: Killed process 4711 (python)",
    "dataset-damaged": "pyarrow.lib.ArrowInvalid: Not an Arrow file",
    "weights-damaged": "safetensors_rust.SafetensorError: Error while deserializing header: HeaderTooLarge",
    "cannot-allocate": "MemoryError",
    "glibc-too-old": "ImportError: /lib/x86_64-linux-gnu/libc.so.6: version `GLIBC_2.38' not found (required by x.so)",
}


@pytest.mark.parametrize(("name", "line"), LINES.items())
def test_log_line_matches_exactly_its_failure(name: str, line: str) -> None:
    assert [item.failure.name for item in failures.match(["before", line, "after"])] == [name]


def test_ordinary_lines_match_no_failure() -> None:
    lines = [
        "step 20/400 loss 4.21 accept 1.35 tok/s 812 lr 1e-3 queue 2 eta 3 m",
        "phase compile: 3/8 drafter[0] cpu",
        "saved checkpoint step-00000020",
        "reading 1000 samples of data/demo",
    ]
    assert failures.match(lines) == []


def test_unknown_failure_shows_the_last_lines() -> None:
    found = failures.explain("\n".join(f"line {n}" for n in range(100)), where="/runs/x/train.log")
    assert found[0]["name"] == "unknown"
    assert "line 99" in found[0]["message"]
    assert "line 80" not in found[0]["message"]
    assert found[0]["remedy"] == "read /runs/x/train.log"


def test_every_entry_is_complete_and_has_its_own_name(repo: Path) -> None:
    entries = yaml.safe_load((repo / "plugins/module_utils/dflash_ops/monitor/failures.yml").read_text())
    names = [entry["name"] for entry in entries]
    assert names == [failure.name for failure in failures.catalogue()]
    assert len(set(names)) == len(names) >= 40
    for entry in entries:
        assert re.fullmatch(r"[a-z0-9-]+", entry["name"])
        assert all(entry[key] for key in ("group", "cause", "remedy", "source")), entry["name"]
        assert entry.get("strings") or entry.get("patterns") or entry.get("probe"), entry["name"]


def test_generated_files_are_up_to_date(repo: Path) -> None:
    done = subprocess.run(
        [sys.executable, str(repo / "tools/failures.py"), "--check"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
