"""Provision a container on a Proxmox host with a driver: read, plan, report, apply."""
from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

from ..core.errors import OpsError
from . import container_config, validation
from .container_config import ContainerSpec, DeviceNode
from .container_host import ProxmoxHost, restart_refused
from .pct_command import SEARCH_PATH


def provision(
    host: ProxmoxHost, spec: ContainerSpec, *, installer: str, driver_check: bool, allow_restart: bool, check_mode: bool
) -> dict[str, Any]:
    """Make the container match its specification and return the module's result; only predict it in check mode.

    Raises:
        OpsError: provisioning failed; nothing was changed unless the message says so.
    """
    host.require_proxmox()
    validation.check(spec)
    found = host.config(spec.vmid)
    host.require(spec, creates=found is None)
    if found and found.lock:
        raise OpsError(f"Container {spec.vmid} is locked ({found.lock}).",
                       remedy="Wait until that has ended; if nothing is running,"
                              f" `pct unlock {spec.vmid}` on the host.")
    nodes = usable_nodes(host, spec, check_mode=check_mode)
    plan = container_config.plan(spec, found, nodes, has_dev=host.has_dev())
    boot = host.boot_changes() if spec.gpus != "none" else {}
    was_running = found is not None and host.running(spec.vmid)
    training = host.training_activity(spec.vmid) if was_running else []
    chosen = container_config.chosen_nodes(spec, nodes)
    result: dict[str, Any] = {
        "changed": bool(plan.changes or boot or not was_running),
        "created": bool(plan.create),
        "gpus": [node.path for node in chosen],
        "training": training,
        "diff": as_diff(spec.vmid, plan, boot),
        "restarted": False,
    }
    if check_mode:
        return result | check_mode_result(host, spec, plan, chosen, was_running)
    if training and allow_restart and plan.waits_for_restart:
        raise restart_refused(spec.vmid, training)
    host.apply(spec.vmid, plan)  # first, since Proxmox refuses what it does not support
    host.write_boot_files(boot)
    result |= start_or_restart(host, spec, chosen, was_running=was_running, allow_restart=allow_restart)
    result["changed"] = result["changed"] or result["restarted"]
    return result | match_driver(host, spec, result, installer=installer, check=driver_check)


def usable_nodes(host: ProxmoxHost, spec: ContainerSpec, *, check_mode: bool) -> list[DeviceNode]:
    """Return the host's NVIDIA nodes, after creating the absent ones that CUDA needs."""
    nodes = host.nodes()
    names = {node.path.removeprefix("/dev/") for node in nodes}
    absent = [name for name in ("nvidia0", *container_config.CONTROL_NODES) if name not in names]
    if spec.gpus == "none" or not absent:
        return nodes
    if not check_mode:
        host.make_nodes()
        return host.nodes()
    if shutil.which("nvidia-modprobe", path=SEARCH_PATH) and "nvidia0" in names:
        nodes += [DeviceNode(path=f"/dev/{name}", major=0, minor=0) for name in absent]
    return nodes


def as_diff(vmid: int, plan: container_config.Plan, boot: dict[str, str]) -> dict[str, str]:
    """Return the change for --diff: the container's configuration, and the host's boot files."""
    files = "".join(f"# {name}\n{text}" for name, text in boot.items())
    return {"before_header": f"container {vmid}", "after_header": f"container {vmid}",
            "before": plan.before, "after": plan.after + files}


def check_mode_result(
    host: ProxmoxHost,
    spec: ContainerSpec,
    plan: container_config.Plan,
    chosen: tuple[DeviceNode, ...],
    was_running: bool,
) -> dict[str, Any]:
    """Return the rest of the result for check mode."""
    reasons: list[str] = []
    driver = {"host": host.driver_version(), "container": ""}
    if was_running:
        reasons = [f"{name} would be pending" for name in plan.waits_for_restart]
        reasons += [] if plan.changes else host.reasons_to_restart(spec.vmid, chosen)
        driver["container"] = host.container_driver(spec.vmid)
    return {"running": was_running, "restart_reasons": reasons, "driver": driver}


def start_or_restart(
    host: ProxmoxHost, spec: ContainerSpec, chosen: tuple[DeviceNode, ...], *, was_running: bool, allow_restart: bool
) -> dict[str, Any]:
    """Start a stopped container; restart a running one when that is needed, allowed, and nothing trains in it."""
    if not was_running:
        host.start(spec.vmid)
        reasons = host.reasons_to_restart(spec.vmid, chosen)
        if reasons:
            raise OpsError(f"Container {spec.vmid} was started, but {reasons[0]}.",
                           remedy=f"Check `pct config {spec.vmid}` and the container's start log on the host.")
        return {"running": True, "restart_reasons": []}
    reasons = host.reasons_to_restart(spec.vmid, chosen)
    if not reasons or not allow_restart:
        return {"running": True, "restart_reasons": reasons}
    host.restart(spec.vmid)
    return {"running": True, "restart_reasons": host.reasons_to_restart(spec.vmid, chosen), "restarted": True}


def match_driver(
    host: ProxmoxHost, spec: ContainerSpec, result: dict[str, Any], *, installer: str, check: bool
) -> dict[str, Any]:
    """Install libraries of the host driver's version in the container when an installer is given."""
    expected = host.driver_version()
    found = host.container_driver(spec.vmid)
    if spec.gpus == "none" or not expected or expected == found:
        return {"driver": {"host": expected, "container": found}}
    differs = f"The host's driver is {expected}, the libraries in container {spec.vmid} are {found or 'absent'}"
    if not installer:
        if not check:
            return {"driver": {"host": expected, "container": found}}
        raise OpsError(f"{differs}; CUDA needs the same version.", facts={"changed": result["changed"]},
                       remedy=f"Set gpu_container_driver_installer to NVIDIA-Linux-x86_64-{expected}.run on the host,"
                              " or install that version in the container (--no-kernel-module).")
    if not Path(installer).is_file() or expected not in Path(installer).name:
        raise OpsError(f"gpu_container_driver_installer = {installer!r} is not an installer of version {expected}"
                       " on the host.", remedy=f"Download NVIDIA-Linux-x86_64-{expected}.run to the host and name it.")
    busy = host.training_activity(spec.vmid)
    if busy:
        raise restart_refused(spec.vmid, busy)
    host.install_driver(spec.vmid, installer)
    found = host.container_driver(spec.vmid)
    if found != expected:
        raise OpsError(f"{installer} ran, but the container's libraries are {found or 'absent'}, not {expected}.",
                       remedy="Read /var/log/nvidia-installer.log in the container.")
    return {"driver": {"host": expected, "container": found}, "changed": True}
