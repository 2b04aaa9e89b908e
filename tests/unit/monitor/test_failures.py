"""The catalogue: complete, unambiguous, in step with its page, and right about real log lines."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
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
def test_line_names_its_failure(name: str, line: str) -> None:
    assert [item.failure.name for item in failures.match(["before", line, "after"])] == [name]


def test_ordinary_lines_name_nothing() -> None:
    lines = [
        "step 20/400 loss 4.21 accept 1.35 tok/s 812 lr 1e-3 queue 2 eta 3 m",
        "phase compile: 3/8 drafter[0] cpu",
        "saved checkpoint step-00000020",
        "reading 1000 samples of data/demo",
    ]
    assert failures.match(lines) == []


def test_unknown_failure_shows_the_last_lines() -> None:
    told = failures.explain("\n".join(f"line {n}" for n in range(100)), where="/runs/x/train.log")
    assert told[0]["name"] == "unknown"
    assert "line 99" in told[0]["message"]
    assert "line 80" not in told[0]["message"]
    assert told[0]["remedy"] == "read /runs/x/train.log"


def test_at_least_forty_entries_each_complete_and_named_once() -> None:
    known = failures.catalogue()
    assert len(known) >= 40
    assert len({failure.name for failure in known}) == len(known)
    for failure in known:
        assert failure.cause and failure.remedy and failure.source, failure.name
        assert failure.strings or failure.patterns or failure.probe, failure.name
        assert re.fullmatch(r"[a-z0-9-]+", failure.name)


def test_made_files_are_in_step_with_the_source(repo: Path) -> None:
    done = subprocess.run(
        [sys.executable, str(repo / "tools/failures.py"), "--check"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
