"""Self-test of a new environment: import every package and compute on every GPU in new processes."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ..core.errors import OpsError
from .lockfile import Lockfile

TIMEOUT = 900.0

# Runs in the environment and prints one JSON object as its last line. Arguments: "torch" for torch and its dependents
# or "rest" for all other packages; the packages to import; "gpu" to compute on every GPU.
SCRIPT = r"""
import gc, importlib, importlib.metadata, json, os, sys, time, warnings
gc.disable()
sys.dont_write_bytecode = False
warnings.simplefilter("ignore")
HEAVY = ("torch", "transformers", "accelerate", "triton", "fla-core", "flash-linear-attention", "safetensors")
part, packages, gpu = sys.argv[1], set(sys.argv[2].split(",")), sys.argv[3] == "gpu"
out = {"python": sys.version.split()[0], "executable": sys.executable, "sys_path": sys.path, "imported": 0}
out["failed"] = {}

def normal(name):
    return name.lower().replace("_", "-").replace(".", "-")

def modules():
    for module, names in importlib.metadata.packages_distributions().items():
        if module.isidentifier() and not module.startswith("_"):
            for name in names:
                yield normal(name), module

def gpu_facts(torch):
    rows = []
    for index in range(torch.cuda.device_count()):
        with torch.cuda.device(index):
            left = torch.ones(256, 256, device="cuda", dtype=torch.bfloat16)
            total = float((left @ left).sum())
        rows.append({"index": index, "name": torch.cuda.get_device_name(index), "ok": total == 256.0 ** 3,
                     "capability": "%d.%d" % torch.cuda.get_device_capability(index)})
    return rows

def fast_paths():
    from transformers.utils import import_utils
    names = {"flash-linear-attention": "is_flash_linear_attention_available",
             "causal-conv1d": "is_causal_conv1d_available", "flash-attn": "is_flash_attn_2_available"}
    return {name: bool(getattr(import_utils, check, bool)()) for name, check in names.items()}

pairs = sorted(set(modules()), key=lambda pair: (HEAVY.index(pair[0]) if pair[0] in HEAVY else 99, pair))
for name, module in pairs:
    if name not in packages or (name in HEAVY) != (part == "torch"):
        continue
    try:
        importlib.import_module(module)
        out["imported"] += 1
    except BaseException as error:
        out["failed"][name + ":" + module] = (type(error).__name__ + ": " + str(error))[:500]
if part == "torch" and any(name == "torch" for name, _ in pairs):
    import torch
    out["torch"] = {"version": torch.__version__, "cuda": torch.version.cuda or "", "file": torch.__file__}
    try:
        out["fast_paths"] = fast_paths() if any(name == "transformers" for name, _ in pairs) else {}
    except Exception as error:
        out["failed"]["transformers"] = (type(error).__name__ + ": " + str(error))[:500]
    if gpu:
        try:
            torch.cuda.init()
            out["gpus"] = gpu_facts(torch)
        except BaseException as error:
            out["gpu_error"] = (type(error).__name__ + ": " + str(error))[:1000]
print(json.dumps(out), flush=True)
os._exit(0)  # a normal interpreter shutdown takes a quarter of the time
"""

GPU_CAUSES = (
    (
        "driver on your system is too old",
        "the NVIDIA driver is older than this torch's CUDA",
        "update the driver on the host",
    ),
    (
        "driver version is insufficient",
        "the NVIDIA driver is older than this torch's CUDA",
        "update the driver on the host",
    ),
    (
        "no kernel image is available",
        "this torch has no kernels for this GPU's architecture",
        "choose a profile built for it",
    ),
    (
        "no nvidia driver",
        "no NVIDIA driver is visible",
        "give the container its /dev/nvidia* devices and the driver's user space",
    ),
    ("out of memory", "another process uses the GPU's memory", "check nvidia-smi on the host"),
)
SLOWER_WITHOUT = {
    "causal-conv1d": "the trainer does not need it, but transformers' own model code runs the short convolutions of "
    "linear attention in plain torch, which is slower; docs/environment.md has the steps to build its wheel",
    "flash-linear-attention": "linear-attention targets run in plain torch, which is many times slower",
}


def start(
    python: Path, lock: Lockfile, *, gpu: bool, env_vars: Mapping[str, str]
) -> list[subprocess.Popen[str]]:
    """Start both parts of the self-test in parallel, in isolated mode and with only the given environment variables."""
    return [
        subprocess.Popen(
            [str(python), "-I", "-c", SCRIPT, part, ",".join(imported_packages(lock)), "gpu" if gpu else ""],
            text=True,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            cwd="/",
            env=dict(env_vars),
        )
        for part in ("torch", "rest")
    ]


def imported_packages(lock: Lockfile) -> list[str]:
    """Return the packages to import: all except those of which only the files are used."""
    return sorted({pin.name for pin in lock.pins} - set(lock.data))


def finish(
    processes: list[subprocess.Popen[str]],
    lock: Lockfile,
    allowed: Sequence[Path],
    *,
    uvm: Path = Path("/dev/nvidia-uvm"),
) -> dict[str, Any]:
    """Wait for both parts, check their results and return them merged.

    Args:
        processes: the result of `start`.
        lock: the environment's lockfile.
        allowed: folders that may contain site-packages.
        uvm: NVIDIA's unified memory device.

    Raises:
        OpsError: a package does not import, torch differs from the lockfile, or a GPU does not compute.
    """
    results = [_result(process) for process in processes]
    facts = {
        **results[1],
        **results[0],
        "imported": sum(result["imported"] for result in results),
        "failed": {name: text for result in results for name, text in result["failed"].items()},
    }
    check(facts, lock, allowed, uvm=uvm)
    return facts


def _result(process: subprocess.Popen[str]) -> dict[str, Any]:
    try:
        out, err = process.communicate(timeout=TIMEOUT)
    except subprocess.TimeoutExpired:
        process.kill()
        raise OpsError(
            f"The environment's self-test did not finish in {TIMEOUT:.0f} s.",
            remedy="check why an import blocks: a network mount, a hanging GPU driver",
        ) from None
    try:
        result: dict[str, Any] = json.loads(out.splitlines()[-1])
    except (ValueError, IndexError):
        raise OpsError(
            f"The environment's Python failed with exit code {process.returncode}: {err.strip()[-1500:]}",
            remedy="the lockfile's packages do not fit this machine",
        ) from None
    return result


def check(facts: dict[str, Any], lock: Lockfile, allowed: Sequence[Path], *, uvm: Path) -> None:
    """Check the results of the self-test.

    Raises:
        OpsError: as `finish`.
    """
    torch = facts.get("torch") or {}
    pinned = lock.version_of("torch")
    if pinned and not torch:
        raise OpsError(
            f"torch=={pinned} is in the lockfile but is not installed.", remedy="run again with python_env_heal=true"
        )
    if pinned and (torch["version"], torch["cuda"]) != (pinned, lock.cuda):
        raise OpsError(
            f"torch is {torch['version']} for CUDA {torch['cuda'] or 'none'}, the lockfile pins {pinned} for CUDA "
            f"{lock.cuda or 'none'}.",
            remedy="check python_env_index_urls: an index served a different build",
        )
    if facts["failed"]:
        listed = "; ".join(f"{name}: {text}" for name, text in facts["failed"].items())
        raise OpsError(
            f"{len(facts['failed'])} package(s) do not import: {listed}.",
            remedy="read each error; the lockfile or the machine's libraries do not fit",
        )
    sites = [Path(path) for path in facts["sys_path"] if path.endswith(("site-packages", "dist-packages"))]
    outside = [str(path) for path in sites if not any(path.is_relative_to(folder) for folder in allowed)]
    if outside:
        raise OpsError(
            f"The environment's Python also imports from {', '.join(outside)}.",
            remedy="build it again without system packages"
        )
    check_gpus(facts, uvm=uvm)


def check_gpus(facts: dict[str, Any], *, uvm: Path) -> None:
    """Check the GPU results.

    Raises:
        OpsError: a GPU does not compute; the message names the cause.
    """
    error = str(facts.get("gpu_error", ""))
    if error:
        for signature, cause, remedy in GPU_CAUSES:
            if signature in error.lower():
                raise OpsError(f"The GPUs do not compute: {cause} ({error}).", remedy=remedy)
        if not uvm.exists():
            raise OpsError(
                f"The GPUs do not compute: {uvm} is missing ({error}).",
                remedy="load the module (nvidia-modprobe -u -c=0) on the host and give the device to the container",
            )
        raise OpsError(
            f"The GPUs do not compute: {error}.", remedy="run a matrix product by hand in the environment's Python"
        )
    bad = [str(row["index"]) for row in facts.get("gpus", []) if not row["ok"]]
    if bad:
        raise OpsError(f"GPU {', '.join(bad)} computes a wrong sum.", remedy="replace it: the hardware is faulty")


def missing_fast_paths(facts: dict[str, Any], lock: Lockfile) -> list[str]:
    """Return one sentence for each missing package with faster kernels; none for a CPU lockfile."""
    paths = facts.get("fast_paths", {})
    return [
        f"{name} is not installed: {text}"
        for name, text in SLOWER_WITHOUT.items()
        if lock.cuda and not paths.get(name, False)
    ]
