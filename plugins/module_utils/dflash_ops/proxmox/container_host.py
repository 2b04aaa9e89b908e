"""The Proxmox host of a container: looked at, and changed by pct."""
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
from .container_config import Config, Node, Plan, Wanted, parse_config, pending_names
from .pct_command import ENVIRONMENT, SEARCH_PATH
from .pct_errors import Place, explain, last_line
from .validation import network_options

CONFIG_FOLDER = Path("/etc/pve/lxc")
MODULES_FILE = Path("/etc/modules-load.d/dflash-nvidia.conf")
UNIT = Path("/etc/systemd/system/dflash-nvidia-nodes.service")
UNIT_LINK = Path("/etc/systemd/system/multi-user.target.wants") / UNIT.name
MODULES_TEXT = "# Loaded at boot, so that the GPUs' nodes exist before a container starts.\nnvidia\nnvidia_uvm\n"
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
START_S = 60
LIBRARIES = ("usr/lib/x86_64-linux-gnu", "usr/lib/aarch64-linux-gnu", "usr/lib64", "usr/lib")


@dataclass(frozen=True)
class Host:
    """The host as this process sees it; `pct` is the program."""

    pct: str = "/usr/sbin/pct"

    # ---- looking -------------------------------------------------------------------------------------------

    def require_proxmox(self) -> None:
        """Raise OpsError when this is no Proxmox host, or we are not root on it."""
        if not os.access(self.pct, os.X_OK):
            raise OpsError(f"There is no {self.pct} here, so this is no Proxmox host.",
                           remedy="Put the Proxmox host itself, over plain ssh, into the group proxmox_hosts.")
        if os.geteuid() != 0:
            raise OpsError("pct needs root on the Proxmox host.",
                           remedy="Set ansible_user: root for the group proxmox_hosts, or ansible_become: true.")

    def require(self, wanted: Wanted, *, creates: bool) -> None:
        """Raise OpsError for a folder, or the bridge of a new container, that this host does not have."""
        for mount in wanted.mounts:
            if mount.source.startswith("/") and not Path(mount.source).is_dir():
                raise OpsError(f"gpu_container_mounts: {mount.source} is no folder on the host.",
                               remedy="Create it there, or correct the source.")
        bridge = network_options(wanted.network)["bridge"]
        if creates and bridge not in [name for _, name in socket.if_nameindex()]:
            raise OpsError(f"gpu_container_network = {wanted.network!r}: the host has no bridge {bridge}.",
                           remedy="Name one that `ip -brief link show type bridge` shows there.")

    def config_path(self, vmid: int) -> Path:
        """Return where Proxmox keeps a container's configuration."""
        return CONFIG_FOLDER / f"{vmid}.conf"

    def config(self, vmid: int) -> Config | None:
        """Return a container's configuration; None when there is no such container on this node."""
        try:
            return parse_config(self.config_path(vmid).read_text(encoding="utf-8"))
        except FileNotFoundError:
            return None

    def running(self, vmid: int) -> bool:
        """Tell whether a container runs."""
        return self.call("status", str(vmid)).strip() == "status: running"

    def nodes(self) -> list[Node]:
        """Return every NVIDIA device node."""
        found = []
        for path in [*Path("/dev").glob("nvidia*"), *Path("/dev/nvidia-caps").glob("nvidia-cap*")]:
            status = path.stat()
            if stat.S_ISCHR(status.st_mode):
                found.append(Node(path=str(path), major=os.major(status.st_rdev), minor=os.minor(status.st_rdev)))
        return sorted(found, key=lambda node: [int(w) if w.isdigit() else w for w in re.split(r"(\d+)", node.path)])

    def has_dev(self) -> bool:
        """Tell whether this Proxmox has devN options, which came with 8.2."""
        try:
            shown = subprocess.run(["pveversion"], capture_output=True, text=True, check=False,
                                   env={"PATH": SEARCH_PATH}).stdout
        except OSError:
            return False
        found = re.search(r"pve-manager/(\d+)\.(\d+)", shown)
        return found is not None and (int(found[1]), int(found[2])) >= (8, 2)

    def reasons_to_restart(self, vmid: int, wanted: Sequence[Node]) -> list[str]:
        """Return what a running container still lacks of its configuration: pending options, absent nodes."""
        reasons = [f"{name} waits for a restart" for name in pending_names(read(self.config_path(vmid)))]
        device_root = Path(f"/proc/{self.init_pid(vmid)}/root")
        for node in wanted:
            try:
                number = (device_root / node.path.lstrip("/")).stat().st_rdev
            except OSError:
                reasons.append(f"{node.path} is not in the container")
                continue
            if (os.major(number), os.minor(number)) != (node.major, node.minor):
                reasons.append(f"{node.path} in the container is an older device")
        return reasons

    def driver_version(self) -> str:
        """Return the version of the loaded NVIDIA kernel module; empty without one."""
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
        """Return the pid, here on the host, of a running container's init."""
        shown = subprocess.run(["lxc-info", "-n", str(vmid), "-p", "-H"], capture_output=True, text=True, check=False)
        return int(shown.stdout) if shown.stdout.strip().isdigit() and int(shown.stdout) > 0 else None

    def container_driver(self, vmid: int) -> str:
        """Return the version of the NVIDIA libraries inside a running container; empty without any."""
        root = Path(f"/proc/{self.init_pid(vmid)}/root")
        for folder in LIBRARIES:
            for library in sorted((root / folder).glob("libcuda.so.*.*")):
                return library.name.removeprefix("libcuda.so.")
        return ""

    def trainings(self, vmid: int) -> list[str]:
        """Return what trains in a container, in words: our own runs, and whatever else holds a GPU open."""
        init = self.init_pid(vmid)
        if init is None:
            return []
        space = namespace(init)
        found = []
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit() and namespace(int(entry.name)) == space:
                words = what_it_trains(entry)
                if words:
                    found.append(words)
        return sorted(set(found))

    # ---- acting --------------------------------------------------------------------------------------------

    def call(self, *words: str) -> str:
        """Run pct and return what it printed; its failure becomes an OpsError with a remedy."""
        done = subprocess.run([self.pct, *words], capture_output=True, text=True, errors="replace", check=False,
                              stdin=subprocess.DEVNULL)
        if done.returncode:
            text = done.stderr + done.stdout
            vmid = int(words[1]) if len(words) > 1 and words[1].isdigit() else 0
            said = explain(text, Place("this host", vmid, self.pct)) if vmid else None
            raise OpsError(said or f"pct {' '.join(words[:2])} failed: {last_line(text)}",
                           remedy="" if said else remedy_for(text), facts={"stderr": text})
        return done.stdout

    def apply(self, vmid: int, plan: Plan) -> None:
        """Do what the plan says; the container is neither started nor stopped."""
        if plan.create:
            self.call(*plan.create)
        elif plan.set or plan.delete:
            words = [word for key, value in plan.set.items() for word in (f"--{key}", value)]
            self.call("set", str(vmid), *words, *(["--delete", ",".join(plan.delete)] if plan.delete else []))
        if plan.raw is not None:
            write_raw(self.config_path(vmid), plan.raw)

    def start(self, vmid: int) -> None:
        """Start a container and wait until commands can run in it."""
        self.call("start", str(vmid))
        end = time.monotonic() + START_S
        while True:
            try:
                self.execute(vmid, "true")
                return
            except OpsError:
                if time.monotonic() > end:
                    raise
                time.sleep(0.5)

    def restart(self, vmid: int) -> None:
        """Restart a container that trains nothing."""
        busy = self.trainings(vmid)
        if busy:
            raise refusal_to_restart(vmid, busy)
        self.call("shutdown", str(vmid), "--timeout", "120", "--forceStop", "1")
        self.start(vmid)

    def execute(self, vmid: int, *command: str) -> str:
        """Run a command inside a container, in a clean environment."""
        return self.call("exec", str(vmid), "--keep-env", "0", "--", "/usr/bin/env", "-i", *ENVIRONMENT, *command)

    def install_driver(self, vmid: int, installer: str) -> None:
        """Run NVIDIA's installer inside a container, without its kernel module."""
        inside = "/root/dflash-nvidia-driver.run"
        self.call("push", str(vmid), installer, inside, "--perms", "0755")
        try:
            self.execute(vmid, "/bin/sh", inside, "--silent", "--no-kernel-module")
        finally:
            self.execute(vmid, "rm", "-f", inside)

    def make_nodes(self) -> None:
        """Create the nodes that a driver without running X server lacks until something asks for them."""
        for command in (["nvidia-modprobe", "-c", "0", "-u"], ["nvidia-smi", "-L"]):
            try:
                subprocess.run(command, capture_output=True, check=False, timeout=60, stdin=subprocess.DEVNULL,
                               env={"PATH": SEARCH_PATH})
            except (OSError, subprocess.TimeoutExpired):
                continue

    def boot_changes(self) -> dict[str, str]:
        """Return the boot files that are not as they must be, with their text."""
        wanted = {MODULES_FILE: MODULES_TEXT, UNIT: UNIT_TEXT}
        changes = {str(path): text for path, text in wanted.items() if read(path) != text}
        if not UNIT_LINK.is_symlink():
            changes[str(UNIT_LINK)] = ""
        return changes

    def write_boot_files(self, changes: Mapping[str, str]) -> None:
        """Write them; the unit is enabled by its link, as systemctl would."""
        for name, text in changes.items():
            if text:
                write_text(Path(name), text)
            else:
                Path(name).parent.mkdir(parents=True, exist_ok=True)
                Path(name).symlink_to(UNIT)


def refusal_to_restart(vmid: int, busy: list[str]) -> OpsError:
    """Return the error for a container that must not be restarted now."""
    return OpsError(f"Container {vmid} trains ({'; '.join(busy)}), so it is not restarted.",
                    remedy="Stop the run first with playbooks/stop.yml, then provision again.")


def namespace(pid: int) -> str:
    """Return the name of a process's pid namespace; empty when it is gone."""
    try:
        return str(Path(f"/proc/{pid}/ns/pid").readlink())
    except OSError:
        return ""


def what_it_trains(entry: Path) -> str:
    """Return in words what a process of a container trains; empty for any other process."""
    try:
        environment = (entry / "environ").read_bytes()
        held = [str(link.readlink()) for link in (entry / "fd").iterdir()]
        name = (entry / "comm").read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return ""
    run = re.search(rb"(?:^|\0)DFLASH_RUN_ID=([^\0]+)", environment)
    if run:
        return f"run {run[1].decode(errors='replace')}"
    # nvidia-smi opens nvidiactl only; a process that computes holds nvidia-uvm
    if any(path.startswith("/dev/nvidia-uvm") for path in held):
        return f"process {entry.name} ({name}) computes on a GPU"
    return ""


def write_raw(path: Path, raw: tuple[tuple[str, str], ...]) -> None:
    """Replace the lxc.* lines of a configuration's own section; snapshots and what is pending stay."""
    head, separator, rest = path.read_text(encoding="utf-8").partition("\n[")
    kept = [line for line in head.splitlines() if line.strip() and not line.startswith("lxc.")]
    text = "\n".join([*kept, *(f"{key}: {value}" for key, value in raw)]) + "\n"
    write_pve(path, text + (separator + rest if separator else ""))


def write_pve(path: Path, text: str) -> None:
    """Write below /etc/pve, whose file system takes a rename but neither modes nor fsync of a folder."""
    spare = path.with_name(f"{path.name}.tmp.{os.getpid()}")
    spare.write_text(text, encoding="utf-8")
    os.replace(spare, path)


def read(path: Path) -> str:
    """Return a file's text; empty when there is none."""
    try:
        return path.read_text(encoding="utf-8")
    except OSError:
        return ""


def remedy_for(text: str) -> str:
    """Return what to do about words of pct that concern creation."""
    if re.search(r"volume '[^']*vztmpl[^']*' does not exist|no such (file|template)", text):
        return "Download the template with `pveam update; pveam download local NAME`, or set gpu_container_template."
    if re.search(r"storage '[^']*' does not exist|no such storage", text):
        return "Set gpu_container_rootfs to STORAGE:GIB with a storage that `pvesm status` shows."
    return "Read the task log on the host (`pct` tasks in its web interface)."
