"""From a Proxmox host with a driver to a running container that sees its GPUs: look, plan, show, apply."""
from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

from ..core.errors import OpsError
from . import container_config, validation
from .container_config import Node, Wanted
from .container_host import Host, refusal_to_restart
from .pct_command import SEARCH_PATH


def provision(
    host: Host, wanted: Wanted, *, installer: str, driver_check: bool, allow_restart: bool, check_mode: bool
) -> dict[str, Any]:
    """Make the container as wanted and return the module's result; in check mode, what would be done.

    Raises:
        OpsError: it cannot be done; nothing was changed unless the message says so.
    """
    host.require_proxmox()
    validation.check(wanted)
    found = host.config(wanted.vmid)
    host.require(wanted, creates=found is None)
    if found and found.lock:
        raise OpsError(f"Container {wanted.vmid} is locked ({found.lock}).",
                       remedy=f"Wait until that has ended; if nothing runs, `pct unlock {wanted.vmid}` on the host.")
    nodes = usable_nodes(host, wanted, check_mode=check_mode)
    plan = container_config.plan(wanted, found, nodes, has_dev=host.has_dev())
    boot = host.boot_changes() if wanted.gpus != "none" else {}
    was_running = found is not None and host.running(wanted.vmid)
    trains = host.trainings(wanted.vmid) if was_running else []
    chosen = container_config.chosen_nodes(wanted, nodes)
    result: dict[str, Any] = {
        "changed": bool(plan.changes or boot or not was_running),
        "created": bool(plan.create),
        "gpus": [node.path for node in chosen],
        "trains": trains,
        "diff": as_diff(wanted.vmid, plan, boot),
        "restarted": False,
    }
    if check_mode:
        return result | predicted(host, wanted, plan, chosen, was_running)
    if trains and allow_restart and plan.waits_for_restart:
        raise refusal_to_restart(wanted.vmid, trains)
    host.apply(wanted.vmid, plan)  # first, since Proxmox refuses what it cannot do
    host.write_boot_files(boot)
    result |= settle(host, wanted, chosen, was_running=was_running, allow_restart=allow_restart)
    result["changed"] = result["changed"] or result["restarted"]
    return result | match_driver(host, wanted, result, installer=installer, check=driver_check)


def usable_nodes(host: Host, wanted: Wanted, *, check_mode: bool) -> list[Node]:
    """Return the host's NVIDIA nodes, after making those that CUDA needs and that are absent."""
    nodes = host.nodes()
    names = {node.path.removeprefix("/dev/") for node in nodes}
    absent = [name for name in ("nvidia0", *container_config.CONTROL_NODES) if name not in names]
    if wanted.gpus == "none" or not absent:
        return nodes
    if not check_mode:
        host.make_nodes()
        return host.nodes()
    if shutil.which("nvidia-modprobe", path=SEARCH_PATH) and "nvidia0" in names:
        nodes += [Node(path=f"/dev/{name}", major=0, minor=0) for name in absent]
    return nodes


def as_diff(vmid: int, plan: container_config.Plan, boot: dict[str, str]) -> dict[str, str]:
    """Return the change for --diff: the container's configuration, and files of the host's boot."""
    files = "".join(f"# {name}\n{text}" for name, text in boot.items())
    return {"before_header": f"container {vmid}", "after_header": f"container {vmid}",
            "before": plan.before, "after": plan.after + files}


def predicted(
    host: Host, wanted: Wanted, plan: container_config.Plan, chosen: tuple[Node, ...], was_running: bool
) -> dict[str, Any]:
    """Return the rest of the result for check mode."""
    reasons: list[str] = []
    driver = {"host": host.driver_version(), "container": ""}
    if was_running:
        reasons = [f"{name} would wait for a restart" for name in plan.waits_for_restart]
        reasons += [] if plan.changes else host.reasons_to_restart(wanted.vmid, chosen)
        driver["container"] = host.container_driver(wanted.vmid)
    return {"running": was_running, "restart_reasons": reasons, "driver": driver}


def settle(
    host: Host, wanted: Wanted, chosen: tuple[Node, ...], *, was_running: bool, allow_restart: bool
) -> dict[str, Any]:
    """Start a stopped container; restart a running one when it must be, may be, and trains nothing."""
    if not was_running:
        host.start(wanted.vmid)
        left = host.reasons_to_restart(wanted.vmid, chosen)
        if left:
            raise OpsError(f"Container {wanted.vmid} was started, but {left[0]}.",
                           remedy=f"Look at `pct config {wanted.vmid}` and at the log of its start on the host.")
        return {"running": True, "restart_reasons": []}
    reasons = host.reasons_to_restart(wanted.vmid, chosen)
    if not reasons or not allow_restart:
        return {"running": True, "restart_reasons": reasons}
    host.restart(wanted.vmid)
    return {"running": True, "restart_reasons": host.reasons_to_restart(wanted.vmid, chosen), "restarted": True}


def match_driver(host: Host, wanted: Wanted, result: dict[str, Any], *, installer: str, check: bool) -> dict[str, Any]:
    """Give the container libraries of the host driver's version when a way to do so is named."""
    ours = host.driver_version()
    theirs = host.container_driver(wanted.vmid)
    if wanted.gpus == "none" or not ours or ours == theirs:
        return {"driver": {"host": ours, "container": theirs}}
    differs = f"The host's driver is {ours}, the libraries in container {wanted.vmid} are {theirs or 'absent'}"
    if not installer:
        if not check:
            return {"driver": {"host": ours, "container": theirs}}
        raise OpsError(f"{differs}; CUDA needs the same version.", facts={"changed": result["changed"]},
                       remedy=f"Set gpu_container_driver_installer to NVIDIA-Linux-x86_64-{ours}.run on the host, or"
                              " install that version in the container (--no-kernel-module).")
    if not Path(installer).is_file() or ours not in Path(installer).name:
        raise OpsError(f"gpu_container_driver_installer = {installer!r} is no file on the host for version {ours}.",
                       remedy=f"Download NVIDIA-Linux-x86_64-{ours}.run to the host and name it.")
    busy = host.trainings(wanted.vmid)
    if busy:
        raise refusal_to_restart(wanted.vmid, busy)
    host.install_driver(wanted.vmid, installer)
    theirs = host.container_driver(wanted.vmid)
    if theirs != ours:
        raise OpsError(f"{installer} ran, yet the container's libraries are {theirs or 'absent'} and not {ours}.",
                       remedy="Read /var/log/nvidia-installer.log in the container.")
    return {"driver": {"host": ours, "container": theirs}, "changed": True}


