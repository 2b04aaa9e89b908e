"""The proof of an environment: what a new process of its python finds, imports and computes."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ..core.errors import OpsError
from .lockfile import Lock

SECONDS = 900.0

# Runs in the environment. Prints one JSON object in its last line. First argument: "torch" imports torch and what
# needs it, "rest" the others; second: the packages to import; third: "gpu" to compute on every GPU.
SCRIPT = r"""
import gc, importlib, importlib.metadata, json, os, sys, time, warnings
gc.disable()
sys.dont_write_bytecode = False
warnings.simplefilter("ignore")
HEAVY = ("torch", "transformers", "accelerate", "triton", "fla-core", "flash-linear-attention", "safetensors")
half, wanted, gpu = sys.argv[1], set(sys.argv[2].split(",")), sys.argv[3] == "gpu"
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
    if name not in wanted or (name in HEAVY) != (half == "torch"):
        continue
    try:
        importlib.import_module(module)
        out["imported"] += 1
    except BaseException as error:
        out["failed"][name + ":" + module] = (type(error).__name__ + ": " + str(error))[:500]
if half == "torch" and any(name == "torch" for name, _ in pairs):
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
os._exit(0)  # taking down what was imported takes a quarter of the time
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
    ("out of memory", "the GPU's memory is taken by another process", "see nvidia-smi on the host"),
)
LOST = {
    "causal-conv1d": "the trainer does not need it; transformers' own model code runs the short convolutions of "
    "linear attention in plain torch, slower; docs/environment.md says how its wheel is built once",
    "flash-linear-attention": "linear-attention targets run in plain torch, many times slower",
}


def start(python: Path, lock: Lock, *, gpu: bool, environment: Mapping[str, str]) -> list[subprocess.Popen[str]]:
    """Start both halves of the proof side by side, in isolated mode and an explicit environment."""
    return [
        subprocess.Popen(
            [str(python), "-I", "-c", SCRIPT, half, ",".join(imported_names(lock)), "gpu" if gpu else ""],
            text=True,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            cwd="/",
            env=dict(environment),
        )
        for half in ("torch", "rest")
    ]


def imported_names(lock: Lock) -> list[str]:
    """Return the packages whose modules are imported: all but those of which only the files are used."""
    return sorted({pin.name for pin in lock.pins} - set(lock.data))


def finish(
    halves: list[subprocess.Popen[str]], lock: Lock, allowed: Sequence[Path], *, uvm: Path = Path("/dev/nvidia-uvm")
) -> dict[str, Any]:
    """Wait for the halves and judge what they found; site-packages are allowed below `allowed` only.

    Raises:
        OpsError: a package does not import, torch is not the lock's, or a GPU does not compute.
    """
    answers = [_answer(half) for half in halves]
    facts = {
        **answers[1],
        **answers[0],
        "imported": sum(one["imported"] for one in answers),
        "failed": {name: text for one in answers for name, text in one["failed"].items()},
    }
    judge(facts, lock, allowed, uvm=uvm)
    return facts


def _answer(half: subprocess.Popen[str]) -> dict[str, Any]:
    try:
        out, err = half.communicate(timeout=SECONDS)
    except subprocess.TimeoutExpired:
        half.kill()
        raise OpsError(
            f"The environment's proof did not end in {SECONDS:.0f} s.", remedy="see what its python waits for"
        ) from None
    try:
        answer: dict[str, Any] = json.loads(out.splitlines()[-1])
    except (ValueError, IndexError):
        raise OpsError(
            f"The environment's python failed with rc {half.returncode}: {err.strip()[-1500:]}",
            remedy="the lock's packages do not fit this machine",
        ) from None
    return answer


def judge(facts: dict[str, Any], lock: Lock, allowed: Sequence[Path], *, uvm: Path) -> None:
    """Refuse what does not hold; what is only slower is left to `losses`."""
    torch = facts.get("torch") or {}
    wanted = lock.version_of("torch")
    if wanted and not torch:
        raise OpsError(
            f"torch=={wanted} is in the lock, and was not found.", remedy="run again with python_env_heal=true"
        )
    if wanted and (torch["version"], torch["cuda"]) != (wanted, lock.cuda):
        raise OpsError(
            f"torch is {torch['version']} for CUDA {torch['cuda'] or 'none'}, the lock pins {wanted} for CUDA "
            f"{lock.cuda or 'none'}.",
            remedy="check python_env_index_urls: another index gave its own build",
        )
    if facts["failed"]:
        listed = "; ".join(f"{name}: {text}" for name, text in facts["failed"].items())
        raise OpsError(
            f"{len(facts['failed'])} package(s) do not import: {listed}.",
            remedy="see each error; the lock or the machine's libraries do not fit",
        )
    sites = [Path(path) for path in facts["sys_path"] if path.endswith(("site-packages", "dist-packages"))]
    outside = [str(path) for path in sites if not any(path.is_relative_to(place) for place in allowed)]
    if outside:
        raise OpsError(
            f"The environment's python also sees {', '.join(outside)}.", remedy="make it again without system packages"
        )
    judge_gpus(facts, uvm=uvm)


def judge_gpus(facts: dict[str, Any], *, uvm: Path) -> None:
    """Name the cause when the GPUs do not compute."""
    error = str(facts.get("gpu_error", ""))
    if error:
        for sign, cause, remedy in GPU_CAUSES:
            if sign in error.lower():
                raise OpsError(f"No work on the GPUs: {cause} ({error}).", remedy=remedy)
        if not uvm.exists():
            raise OpsError(
                f"No work on the GPUs: {uvm} is missing ({error}).",
                remedy="load the module (nvidia-modprobe -u -c=0) on the host and give the device to the container",
            )
        raise OpsError(
            f"No work on the GPUs: {error}.", remedy="run the same operation by hand in the environment's python"
        )
    bad = [str(row["index"]) for row in facts.get("gpus", []) if not row["ok"]]
    if bad:
        raise OpsError(f"GPU {', '.join(bad)} computes a wrong sum.", remedy="take it out of use; it is broken")


def losses(facts: dict[str, Any], lock: Lock) -> list[str]:
    """Say what is slower than it could be in this environment; nothing for a CPU profile."""
    paths = facts.get("fast_paths", {})
    return [f"{name} is not there: {text}" for name, text in LOST.items() if lock.cuda and not paths.get(name, False)]
