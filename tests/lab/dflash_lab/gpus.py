"""Stand-in GPUs: device nodes and an nvidia-smi on the lab's host."""
from __future__ import annotations

import json
import os
import shutil
import stat

from .layout import FILES, Layout

DRIVER = "570.86.15"
MAJOR, UVM_MAJOR, CAPS_MAJOR = 195, 511, 236


def place_on_host(layout: Layout, count: int, *, uvm: bool = True, driver: str = DRIVER) -> None:
    """Create the nodes and the driver's version for the namespace, before the host starts."""
    nodes = layout.host / "dev-nodes"
    shutil.rmtree(nodes, ignore_errors=True)
    (nodes / "nvidia-caps").mkdir(parents=True)
    numbers = {f"nvidia{index}": (MAJOR, index) for index in range(count)} | {"nvidiactl": (MAJOR, 255)}
    if uvm:
        numbers |= {"nvidia-uvm": (UVM_MAJOR, 0), "nvidia-uvm-tools": (UVM_MAJOR, 1)}
    numbers |= {"nvidia-caps/nvidia-cap1": (CAPS_MAJOR, 1), "nvidia-caps/nvidia-cap2": (CAPS_MAJOR, 2)}
    for name, number in numbers.items():
        os.mknod(nodes / name, 0o666 | stat.S_IFCHR, os.makedev(*number))
        (nodes / name).chmod(0o666)
    shutil.copy2(FILES / "nvidia-smi", layout.host / "usr/sbin/nvidia-smi")
    settings = {"count": count, "name": "NVIDIA H200", "memory_mib": 143771, "driver": driver}
    path = layout.host / "etc/dflash-lab/gpus.json"
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(settings) + "\n", encoding="utf-8")
