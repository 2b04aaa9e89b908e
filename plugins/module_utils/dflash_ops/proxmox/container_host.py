"""The Proxmox host of a container: read its state, and change it through pct."""
from __future__ import annotations

import os
import re
import socket
import stat
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from ..core.errors import OpsError
from ..core.files import write_text
from .container_config import Config, ContainerSpec, DeviceNode, Plan, parse_config, pending_names
from .pct_command import ENVIRONMENT, SEARCH_PATH
from .pct_errors import Target, explain, last_line
from .validation import network_options

CONFIG_FOLDER = Path("/etc/pve/lxc")
MODULES_FILE = Path("/etc/modules-load.d/dflash-nvidia.conf")
UNIT = Path("/etc/systemd/system/dflash-nvidia-nodes.service")
UNIT_LINK = Path("/etc/systemd/system/multi-user.target.wants") / UNIT.name
MODULES_TEXT = "# Loaded at boot, so that the GPU device nodes exist before a container starts.\nnvidia\nnvidia_uvm\n"
UNIT_TEXT = """\
[Unit]
Description=Create the NVIDIA device nodes before the containers that use them start
After=systemd-modules-load.service
Before=pve-guests.service

[Service]
Type=oneshot
RemainAfterExit=yes
ExecStart=-/usr/bin/nvidia-modprobe -c 0 -u
ExecStart=-/usr/bin/env nvidia-smi -L

[Install]
WantedBy=multi-user.target
"""
START_TIMEOUT_S = 60
LIBRARIES = ("usr/lib/x86_64-linux-gnu", "usr/lib/aarch64-linux-gnu", "usr/lib64", "usr/lib")


@dataclass(frozen=True)
class ProxmoxHost:
    """The host that this process runs on. `pct` is the path of the pct command."""

    pct: str = "/usr/sbin/pct"

    # ---- read ----------------------------------------------------------------------------------------------

    def require_proxmox(self) -> None:
        """Raise OpsError when this is not a Proxmox host, or this process is not root."""
        if not os.access(self.pct, os.X_OK):
            raise OpsError(f"This is not a Proxmox host: it has no {self.pct}.",
                           remedy="Put the Proxmox host itself, over plain ssh, into the group proxmox_hosts.")
        if os.geteuid() != 0:
            raise OpsError("pct needs root on the Proxmox host.",
                           remedy="Set ansible_user: root for the group proxmox_hosts, or ansible_become: true.")

    def require(self, spec: ContainerSpec, *, creates: bool) -> None:
        """Raise OpsError when a mounted folder, or the bridge of a new container, does not exist on this host."""
        for mount in spec.mounts:
            if mount.source.startswith("/") and not Path(mount.source).is_dir():
                raise OpsError(f"gpu_container_mounts: {mount.source} is not a folder on the host.",
                               remedy="Create it there, or correct the source.")
        bridge = network_options(spec.network)["bridge"]
        if creates and bridge not in [name for _, name in socket.if_nameindex()]:
            raise OpsError(f"gpu_container_network = {spec.network!r}: the host has no bridge {bridge}.",
                           remedy="Choose one that `ip -brief link show type bridge` shows there.")

    def config_path(self, vmid: int) -> Path:
        """Return the path of a container's Proxmox configuration."""
        return CONFIG_FOLDER / f"{vmid}.conf"

    def config(self, vmid: int) -> Config | None:
        """Return a container's configuration; None when this node has no such container."""
        try:
            return parse_config(self.config_path(vmid).read_text(encoding="utf-8"))
        except FileNotFoundError:
            return None

    def running(self, vmid: int) -> bool:
        """Return true when a container is running."""
        return self.call("status", str(vmid)).strip() == "status: running"

    def nodes(self) -> list[DeviceNode]:
        """Return every NVIDIA device node."""
        found = []
        for path in [*Path("/dev").glob("nvidia*"), *Path("/dev/nvidia-caps").glob("nvidia-cap*")]:
            status = path.stat()
            if stat.S_ISCHR(status.st_mode):
                found.append(DeviceNode(path=str(path), major=os.major(status.st_rdev), minor=os.minor(status.st_rdev)))
        return sorted(found, key=lambda node: [int(p) if p.isdigit() else p for p in re.split(r"(\d+)", node.path)])

    def has_dev(self) -> bool:
        """Return true when this Proxmox supports devN options (8.2 and later)."""
        try:
            shown = subprocess.run(["pveversion"], capture_output=True, text=True, check=False,
                                   env={"PATH": SEARCH_PATH}).stdout
        except OSError:
            return False
        found = re.search(r"pve-manager/(\d+)\.(\d+)", shown)
        return found is not None and (int(found[1]), int(found[2])) >= (8, 2)

    def reasons_to_restart(self, vmid: int, nodes: Sequence[DeviceNode]) -> list[str]:
        """Return the reasons why a running container needs a restart: pending options, absent or stale nodes."""
        reasons = [f"{name} is pending" for name in pending_names(read(self.config_path(vmid)))]
        device_root = Path(f"/proc/{self.init_pid(vmid)}/root")
        for node in nodes:
            try:
                number = (device_root / node.path.lstrip("/")).stat().st_rdev
            except OSError:
                reasons.append(f"{node.path} is not in the container")
                continue
            if (os.major(number), os.minor(number)) != (node.major, node.minor):
                reasons.append(f"{node.path} in the container has an outdated device number")
        return reasons

    def driver_version(self) -> str:
        """Return the version of the loaded NVIDIA kernel module; empty when none is loaded."""
        for path in ("/sys/module/nvidia/version", "/proc/driver/nvidia/version"):
            try:
                found = re.search(r"\d+\.\d+(\.\d+)?", Path(path).read_text(encoding="utf-8"))
            except OSError:
                continue
            if found:
                return found[0]
        try:
            shown = subprocess.run(["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"], timeout=30,
                                   capture_output=True, text=True, check=False, env={"PATH": SEARCH_PATH})
        except (OSError, subprocess.TimeoutExpired):
            return ""
        return (shown.stdout.split() or [""])[0] if shown.returncode == 0 else ""

    def init_pid(self, vmid: int) -> int | None:
        """Return the pid of a container's init on the host; None when it is not running."""
        shown = subprocess.run(["lxc-info", "-n", str(vmid), "-p", "-H"], capture_output=True, text=True, check=False)
        return int(shown.stdout) if shown.stdout.strip().isdigit() and int(shown.stdout) > 0 else None

    def container_driver(self, vmid: int) -> str:
        """Return the version of the NVIDIA libraries in a running container; empty when it has none."""
        root = Path(f"/proc/{self.init_pid(vmid)}/root")
        for folder in LIBRARIES:
            for library in sorted((root / folder).glob("libcuda.so.*.*")):
                return library.name.removeprefix("libcuda.so.")
        return ""

    def training_activity(self, vmid: int) -> list[str]:
        """Describe the runs, and other processes that compute on a GPU, in a container."""
        init = self.init_pid(vmid)
        if init is None:
            return []
        container_namespace = pid_namespace(init)
        found = []
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit() and pid_namespace(int(entry.name)) == container_namespace:
                description = describe_training(entry)
                if description:
                    found.append(description)
        return sorted(set(found))

    # ---- change --------------------------------------------------------------------------------------------

    def call(self, *arguments: str) -> str:
        """Run pct and return its output.

        Raises:
            OpsError: pct failed; with a cause and a remedy.
        """
        done = subprocess.run([self.pct, *arguments], capture_output=True, text=True, errors="replace", check=False,
                              stdin=subprocess.DEVNULL)
        if done.returncode:
            text = done.stderr + done.stdout
            vmid = int(arguments[1]) if len(arguments) > 1 and arguments[1].isdigit() else 0
            explanation = explain(text, Target("this host", vmid, self.pct)) if vmid else None
            raise OpsError(explanation or f"pct {' '.join(arguments[:2])} failed: {last_line(text)}",
                           remedy="" if explanation else remedy_for(text), facts={"stderr": text})
        return done.stdout

    def apply(self, vmid: int, plan: Plan) -> None:
        """Apply a plan without starting or stopping the container."""
        if plan.create:
            self.call(*plan.create)
        elif plan.set or plan.delete:
            options = [text for key, value in plan.set.items() for text in (f"--{key}", value)]
            self.call("set", str(vmid), *options, *(["--delete", ",".join(plan.delete)] if plan.delete else []))
        if plan.raw is not None:
            write_raw(self.config_path(vmid), plan.raw)

    def start(self, vmid: int) -> None:
        """Start a container and wait until commands can run in it."""
        self.call("start", str(vmid))
        end = time.monotonic() + START_TIMEOUT_S
        while True:
            try:
                self.execute(vmid, "true")
                return
            except OpsError:
                if time.monotonic() > end:
                    raise
                time.sleep(0.5)

    def restart(self, vmid: int) -> None:
        """Restart a container unless something trains in it."""
        busy = self.training_activity(vmid)
        if busy:
            raise restart_refused(vmid, busy)
        self.call("shutdown", str(vmid), "--timeout", "120", "--forceStop", "1")
        self.start(vmid)

    def execute(self, vmid: int, *command: str) -> str:
        """Run a command in a container with a clean environment."""
        return self.call("exec", str(vmid), "--keep-env", "0", "--", "/usr/bin/env", "-i", *ENVIRONMENT, *command)

    def install_driver(self, vmid: int, installer: str) -> None:
        """Run NVIDIA's installer in a container, without the kernel module."""
        inside = "/root/dflash-nvidia-driver.run"
        self.call("push", str(vmid), installer, inside, "--perms", "0755")
        try:
            self.execute(vmid, "/bin/sh", inside, "--silent", "--no-kernel-module")
        finally:
            self.execute(vmid, "rm", "-f", inside)

    def make_nodes(self) -> None:
        """Create the device nodes that the driver creates only on first use."""
        for command in (["nvidia-modprobe", "-c", "0", "-u"], ["nvidia-smi", "-L"]):
            try:
                subprocess.run(command, capture_output=True, check=False, timeout=60, stdin=subprocess.DEVNULL,
                               env={"PATH": SEARCH_PATH})
            except (OSError, subprocess.TimeoutExpired):
                continue

    def boot_changes(self) -> dict[str, str]:
        """Return the boot files to write: path -> text. An empty text means the link that enables the unit."""
        expected = {MODULES_FILE: MODULES_TEXT, UNIT: UNIT_TEXT}
        changes = {str(path): text for path, text in expected.items() if read(path) != text}
        if not UNIT_LINK.is_symlink():
            changes[str(UNIT_LINK)] = ""
        return changes

    def write_boot_files(self, changes: Mapping[str, str]) -> None:
        """Write the boot files; the unit is enabled by its link, as systemctl does."""
        for name, text in changes.items():
            if text:
                write_text(Path(name), text)
            else:
                Path(name).parent.mkdir(parents=True, exist_ok=True)
                Path(name).symlink_to(UNIT)


def restart_refused(vmid: int, busy: list[str]) -> OpsError:
    """Return the error for a container in which something trains."""
    return OpsError(f"Container {vmid} is training ({'; '.join(busy)}), so it was not restarted.",
                    remedy="Stop the run first with playbooks/stop.yml, then provision again.")


def pid_namespace(pid: int) -> str:
    """Return the name of a process's PID namespace; empty when the process is gone."""
    try:
        return str(Path(f"/proc/{pid}/ns/pid").readlink())
    except OSError:
        return ""


def describe_training(entry: Path) -> str:
    """Describe a process that trains or computes on a GPU; empty for any other process."""
    try:
        environment = (entry / "environ").read_bytes()
        open_files = [str(link.readlink()) for link in (entry / "fd").iterdir()]
        name = (entry / "comm").read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return ""
    run = re.search(rb"(?:^|\0)DFLASH_RUN_ID=([^\0]+)", environment)
    if run:
        return f"run {run[1].decode(errors='replace')}"
    # nvidia-smi opens only nvidiactl; a process that computes opens nvidia-uvm
    if any(path.startswith("/dev/nvidia-uvm") for path in open_files):
        return f"process {entry.name} ({name}) computes on a GPU"
    return ""


def write_raw(path: Path, raw: tuple[tuple[str, str], ...]) -> None:
    """Replace the lxc.* lines of a configuration's main section; snapshots and pending options stay."""
    head, separator, rest = path.read_text(encoding="utf-8").partition("\n[")
    kept = [line for line in head.splitlines() if line.strip() and not line.startswith("lxc.")]
    text = "\n".join([*kept, *(f"{key}: {value}" for key, value in raw)]) + "\n"
    write_pve(path, text + (separator + rest if separator else ""))


def write_pve(path: Path, text: str) -> None:
    """Write a file below /etc/pve, where rename works but file modes and fsync of a folder do not."""
    temporary = path.with_name(f"{path.name}.tmp.{os.getpid()}")
    temporary.write_text(text, encoding="utf-8")
    os.replace(temporary, path)


def read(path: Path) -> str:
    """Return a file's text; empty when it cannot be read."""
    try:
        return path.read_text(encoding="utf-8")
    except OSError:
        return ""


def remedy_for(text: str) -> str:
    """Return the remedy for an error of `pct create`."""
    if re.search(r"volume '[^']*vztmpl[^']*' does not exist|no such (file|template)", text):
        return "Download the template with `pveam update; pveam download local NAME`, or set gpu_container_template."
    if re.search(r"storage '[^']*' does not exist|no such storage", text):
        return "Set gpu_container_rootfs to STORAGE:GIB with a storage that `pvesm status` shows."
    return "Read the task log on the host (`pct` tasks in its web interface)."
