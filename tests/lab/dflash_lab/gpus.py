"""Stand-in GPUs: device nodes on the lab's host, and an nvidia-smi that tests can make misbehave."""
from __future__ import annotations

import json
import os
import shutil
import stat
from pathlib import Path
from typing import Any

from .layout import FILES, FIRST_HOST_ID, UNPRIVILEGED, Layout
from .shell import run

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
    control.write_text(json.dumps(state(count, driver=driver)) + "\n", encoding="utf-8")


def state(count: int, *, mode: str = "ok", driver: str = DRIVER, **more: Any) -> dict[str, Any]:
    """Return what the control file of the stand-in nvidia-smi holds."""
    return {"count": count, "name": "NVIDIA H200", "memory_mib": 143771, "driver": driver, "mode": mode, **more}


def place_in_container(layout: Layout, container: int, count: int, *, mode: str = "ok", **more: Any) -> None:
    """Put the stand-in nvidia-smi and its control file into a container, running or not."""
    root = layout.state / "ct" / str(container) / "upper"
    owner = FIRST_HOST_ID if container == UNPRIVILEGED else 0
    control = json.dumps(state(count, mode=mode, **more)) + "\n"
    write(Path("/etc/dflash-lab/gpus.json"), control, 0o644, layout, container, root, owner)
    text = (FILES / "nvidia-smi").read_text(encoding="utf-8")
    write(Path("/usr/bin/nvidia-smi"), text, 0o755, layout, container, root, owner)


def write(path: Path, text: str, mode: int, layout: Layout, container: int, upper: Path, owner: int) -> None:
    """Write a file of a container: through its init's root when it runs, else into its upper layer."""
    init = run("lxc-info", "-P", layout.lxc, "-n", str(container), "-p", "-H", check=False).stdout.strip()
    top = Path("/proc", init, "root") if init.isdigit() and int(init) > 0 else upper
    target = top / str(path).lstrip("/")
    for folder in (target.parent.parent, target.parent):
        if not folder.exists():
            folder.mkdir(mode=0o755)
            os.chown(folder, owner, owner)
    target.write_text(text, encoding="utf-8")
    target.chmod(mode)
    os.chown(target, owner, owner)
