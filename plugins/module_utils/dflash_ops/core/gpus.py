"""GPUs: nvidia-smi, device files, processes that use GPU memory, and a test allocation."""

from __future__ import annotations

import dataclasses
import json
import os
import re
import shutil
import subprocess
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from . import truncate
from .paths import SYSTEM_PATH, Layout, home

QUERY = ("index", "uuid", "name", "driver_version", "memory.total", "memory.used", "utilization.gpu")
SMI_SECONDS = 20
PROBE_SECONDS = 180
FOREIGN_MIB = 1024  # above a bare CUDA context and the driver's own use
DEVICE_FILE = re.compile(r"nvidia\d+")


@dataclasses.dataclass(frozen=True)
class Gpu:
    """GPU as listed by nvidia-smi; a number is None when nvidia-smi did not print it."""

    index: int
    uuid: str
    name: str
    driver: str
    total_mib: int | None
    used_mib: int | None
    use_percent: int | None


@dataclasses.dataclass(frozen=True)
class Holder:
    """Process that uses GPU memory and is visible in this PID namespace."""

    uuid: str
    pid: int
    name: str
    used_mib: int | None


@dataclasses.dataclass(frozen=True)
class Survey:
    """Result of a survey of the GPUs.

    Args:
        state: `ok`, `none` (the box has no NVIDIA GPU), or `unknown` (nvidia-smi failed, hung or printed an error).
        gpus: listed GPUs.
        holders: processes that use GPU memory.
        device_files: number of /dev/nvidiaN.
        problems: one sentence each.
    """

    state: str
    gpus: tuple[Gpu, ...] = ()
    holders: tuple[Holder, ...] = ()
    device_files: int = 0
    problems: tuple[str, ...] = ()

    def as_dict(self) -> dict[str, Any]:
        """Return the fields."""
        return dataclasses.asdict(self)


def _number(text: str) -> int | None:
    match = re.match(r"\s*(\d+)", text)
    return int(match.group(1)) if match else None


def parse_gpus(text: str) -> tuple[list[Gpu], list[str]]:
    """Return the GPUs in the output of `--query-gpu`, and the other lines (errors printed with rc 0)."""
    found, odd = [], []
    for line in filter(None, (line.strip() for line in text.splitlines())):
        cells = [cell.strip() for cell in line.split(",")]
        if len(cells) != len(QUERY) or not cells[0].isdigit():
            odd.append(line)
            continue
        found.append(Gpu(int(cells[0]), cells[1], cells[2], cells[3], *(_number(cell) for cell in cells[4:])))
        if any("error" in cell.lower() or "err!" in cell.lower() for cell in cells):
            odd.append(line)
    return found, odd


def parse_holders(text: str) -> list[Holder]:
    """Return the processes in the output of `--query-compute-apps=gpu_uuid,pid,process_name,used_memory`."""
    rows = ([cell.strip() for cell in line.split(",")] for line in text.splitlines())
    return [Holder(row[0], int(row[1]), row[2], _number(row[3])) for row in rows if len(row) == 4 and row[1].isdigit()]


def survey(*, nvidia_smi: str = "", dev: Path = Path("/dev"), seconds: float = SMI_SECONDS) -> Survey:
    """Query nvidia-smi and count device files, without raising, at most `seconds` for each query."""
    files = len([name for name in os.listdir(dev) if DEVICE_FILE.fullmatch(name)]) if dev.is_dir() else 0
    tool = nvidia_smi or shutil.which("nvidia-smi", path=SYSTEM_PATH) or ""
    if not tool:
        missing = f"{files} /dev/nvidiaN files exist, but nvidia-smi is missing"
        return Survey(state="unknown", device_files=files, problems=(missing,)) if files else Survey(state="none")
    answer, problem = _query([tool, f"--query-gpu={','.join(QUERY)}", "--format=csv,noheader,nounits"], seconds)
    if problem:
        return Survey(state="unknown", device_files=files, problems=(problem,))
    found, odd = parse_gpus(answer)
    problems = [f"nvidia-smi printed with rc 0: {line}" for line in odd]
    if files and len(found) != files:
        problems.append(f"nvidia-smi lists {len(found)} of {files} GPUs that have a device file")
    apps, problem = _query(
        [tool, "--query-compute-apps=gpu_uuid,pid,process_name,used_memory", "--format=csv,noheader,nounits"], seconds
    )
    problems += [problem] if problem else []
    state = "unknown" if odd and not found else "ok" if found else "none"
    return Survey(state, tuple(found), tuple(parse_holders(apps)), files, tuple(problems))


def _query(argv: Sequence[str], seconds: float) -> tuple[str, str]:
    """Return (output, problem) of one nvidia-smi query."""
    done = _run(argv, {"PATH": SYSTEM_PATH, "LANG": "C"}, seconds)
    if done is None:
        return "", f"nvidia-smi did not answer within {seconds:g} s (a GPU or the driver hangs)"
    if isinstance(done, OSError):
        return "", f"nvidia-smi could not be started: {done}"
    if done.returncode != 0:
        output = truncate.shorten((done.stdout + done.stderr).strip(), 300)
        return "", f"nvidia-smi failed with rc {done.returncode}: {output}"
    return done.stdout, ""


def _run(
    argv: Sequence[str], environment: Mapping[str, str], seconds: float
) -> subprocess.CompletedProcess[str] | OSError | None:
    """Run a program; return None when it hung and was killed, and the error when it could not be started."""
    try:
        return subprocess.run(
            argv,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=seconds,
            check=False,
            stdin=subprocess.DEVNULL,
            env=environment,
        )
    except subprocess.TimeoutExpired:
        return None
    except OSError as error:
        return error


def indices(needs: Mapping[str, Any]) -> tuple[int, ...]:
    """Return the GPU indices that a configuration needs: the devices it names, otherwise the first GPUs."""
    named = {int(device.partition(":")[2] or 0) for device in needs.get("devices") or () if device.startswith("cuda")}
    return tuple(sorted(named)) or tuple(range(int(needs.get("gpus") or 0)))


def foreign_memory(found: Survey, used: Collection[int], *, own_pids: Collection[int] = ()) -> list[str]:
    """Return one problem for each of the `used` GPUs whose memory another process uses.

    nvidia-smi inside a container does not list processes of other PID namespaces. Therefore the amount of used memory
    is checked too.
    """
    problems = []
    for gpu in (gpu for gpu in found.gpus if gpu.index in used):
        others = [holder for holder in found.holders if holder.uuid == gpu.uuid and holder.pid not in own_pids]
        if others:
            names = ", ".join(f"{holder.name} (pid {holder.pid}, {holder.used_mib or '?'} MiB)" for holder in others)
            problems.append(f"GPU {gpu.index} is used by {names}")
    return problems if own_pids else [*problems, *(hidden_usage_text(gpu) for gpu in hidden_usage(found, used))]


def hidden_usage(found: Survey, used: Collection[int]) -> list[Gpu]:
    """Return those of the `used` GPUs whose memory is used, but not by a process visible in this PID namespace."""
    seen = {holder.uuid for holder in found.holders}
    return [
        gpu
        for gpu in found.gpus
        if gpu.index in used and gpu.uuid not in seen and (gpu.used_mib or 0) >= FOREIGN_MIB
    ]


def hidden_usage_text(gpu: Gpu) -> str:
    """Return the problem for a GPU with hidden memory usage."""
    return (
        f"GPU {gpu.index} has {gpu.used_mib} MiB in use by a process that is not visible from here "
        "(another container or the host)"
    )


def count_problem(found: Survey, used: Sequence[int]) -> str:
    """Return the problem when the box lacks GPUs of the configuration or lost one; empty when there is none."""
    present = [gpu.index for gpu in found.gpus]
    missing = [index for index in used if index not in present]
    lost = len(present) < found.device_files
    if not used or (found.state == "ok" and not missing and not lost):
        return ""
    uses = f"the configuration uses {_devices(missing or used)}"
    if found.state == "unknown":
        return f"{uses}, and the GPUs could not be counted: {'; '.join(found.problems)}"
    lacks = "which the box lacks" if missing else "and a GPU of the box is lost"
    reason = f" ({'; '.join(found.problems)})" if found.problems else ""
    return f"{uses}, {lacks}: it has {_devices(present) or 'none'}{reason}"


def _devices(numbers: Sequence[int]) -> str:
    """Return GPUs as device names, a long range as `cuda:0 to cuda:7`."""
    if len(numbers) > 2 and numbers[-1] - numbers[0] + 1 == len(numbers):
        return f"cuda:{numbers[0]} to cuda:{numbers[-1]}"
    return ", ".join(f"cuda:{number}" for number in numbers)


PROBE = """
import json, sys, torch
out = []
for index in json.loads(sys.argv[1]):
    try:
        x = torch.ones(1 << 20, device=f"cuda:{index}")
        torch.cuda.synchronize(index)
        out.append({"index": index, "ok": float(x.sum()) == float(1 << 20), "error": ""})
    except Exception as error:
        out.append({"index": index, "ok": False, "error": f"{type(error).__name__}: {error}".splitlines()[0]})
print(json.dumps(out))
"""


def probe_allocation(
    layout: Layout,
    env_id: str,
    used: Sequence[int],
    *,
    dev: Path = Path("/dev"),
    extra: Mapping[str, str] | None = None,
) -> list[str]:
    """Allocate and sum a tensor on each of the `used` GPUs with the environment's torch; return the problems."""
    if not used:
        return []
    argv = [str(layout.python(env_id)), "-I", "-c", PROBE, json.dumps(list(used))]
    values = {"PATH": SYSTEM_PATH, "LANG": "C.UTF-8", "HOME": home()}
    values |= {"CUDA_DEVICE_ORDER": "PCI_BUS_ID", **(extra or {})}
    done = _run(argv, values, PROBE_SECONDS)
    if done is None:
        return [f"an allocation on {len(used)} GPUs did not finish within {PROBE_SECONDS} s" + uvm_hint(dev)]
    if isinstance(done, OSError):
        return [f"the environment's python could not be started: {done}"]
    try:
        rows = json.loads(done.stdout.strip().splitlines()[-1])
    except (ValueError, IndexError):
        last = (done.stderr.strip().splitlines() or ["no message"])[-1]
        return [f"the allocation probe ended with rc {done.returncode}: {last}" + uvm_hint(dev)]
    return [
        f"GPU {row['index']} fails an allocation: {row['error'] or 'wrong sum'}" + uvm_hint(dev)
        for row in rows
        if not row["ok"]
    ]


def uvm_hint(dev: Path = Path("/dev")) -> str:
    """Return the usual cause of CUDA failing while nvidia-smi works: a missing nvidia-uvm device."""
    missing = [name for name in ("nvidia-uvm", "nvidiactl") if not (dev / name).exists()]
    if not missing:
        return ""
    names = ", ".join(str(dev / name) for name in missing)
    return f"; {names} is missing: load nvidia-uvm on the host (nvidia-modprobe -u -c=0) and pass it into the container"


def model(found: Survey) -> str:
    """Return one name for the GPU models of this box; empty without GPUs."""
    return " + ".join(sorted({gpu.name for gpu in found.gpus}))
