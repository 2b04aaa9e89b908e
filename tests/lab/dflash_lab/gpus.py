"""Stand-in GPUs: device nodes on the lab's host, and an nvidia-smi that tests can make misbehave."""
from __future__ import annotations

import json
import os
import shutil
import stat
from typing import Any

from .layout import FILES, Layout

DRIVER = "570.86.15"
MAJOR, UVM_MAJOR, CAPS_MAJOR = 195, 511, 236


def place_on_host(layout: Layout, count: int, *, uvm: bool = True, driver: str = DRIVER) -> None:
    """Lay the nodes and the driver's version for the namespace; call it before the host starts."""
    nodes = layout.host / "dev-nodes"
    shutil.rmtree(nodes, ignore_errors=True)
    (nodes / "nvidia-caps").mkdir(parents=True)
    wanted = {f"nvidia{index}": (MAJOR, index) for index in range(count)} | {"nvidiactl": (MAJOR, 255)}
    if uvm:
        wanted |= {"nvidia-uvm": (UVM_MAJOR, 0), "nvidia-uvm-tools": (UVM_MAJOR, 1)}
    wanted |= {"nvidia-caps/nvidia-cap1": (CAPS_MAJOR, 1), "nvidia-caps/nvidia-cap2": (CAPS_MAJOR, 2)}
    for name, number in wanted.items():
        os.mknod(nodes / name, 0o666 | stat.S_IFCHR, os.makedev(*number))
        (nodes / name).chmod(0o666)
    shutil.copy2(FILES / "nvidia-smi", layout.host / "usr/sbin/nvidia-smi")
    control = layout.host / "etc/dflash-lab/gpus.json"
    control.parent.mkdir(exist_ok=True)
    control.write_text(json.dumps(state(count, driver)) + "\n", encoding="utf-8")


def state(count: int, driver: str) -> dict[str, Any]:
    """Return what the control file of the stand-in nvidia-smi holds."""
    return {"count": count, "name": "NVIDIA H200", "memory_mib": 143771, "driver": driver, "mode": "ok"}
