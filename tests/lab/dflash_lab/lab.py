"""The lab: start it, stop it, and change its state in tests."""
from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from . import gpus, host, leftovers, network, rootfs
from .layout import BRIDGE, FIRST_HOST_ID, NETWORK, NODE, PRIVILEGED, TEMPLATE, UNPRIVILEGED, Layout, address
from .packages import install_packages
from .shell import LabError, run

# variables that a host's logins may export, and that must not reach a container
LEAKING = {"SSL_CERT_FILE": "/nope", "PYTHONPATH": "/tmp/x", "LD_LIBRARY_PATH": "/tmp/y", "CUDA_VISIBLE_DEVICES": ""}

# Like Debian's ssh.service: systemd waits until sshd listens, and processes of a login outlive it. With logind a login
# would not belong to this service, so neither its task limit nor an out-of-memory process may end it here.
NODE_UNIT = """\
[Unit]
After=network.target
[Service]
Type=notify
RuntimeDirectory=sshd
ExecStart=/usr/sbin/sshd -D -o HostKey=/etc/ssh/ssh_host_ed25519_key
KillMode=process
Restart=on-failure
TasksMax=infinity
OOMPolicy=continue
"""


@dataclass(frozen=True)
class Lab:
    """A stand-in Proxmox host with containers 200 (unprivileged), 201 (privileged) and 202 (a plain ssh node)."""

    layout: Layout

    # ---- start and stop ------------------------------------------------------------------------------------

    def build(self) -> None:
        """Install packages and build the root file systems, which is slow and done once."""
        refuse_wrong_machine()
        install_packages()
        leftovers.end(leftovers.of_build, self.layout)
        rootfs.build_base(self.layout)

    def up(self, containers: Sequence[int] = (UNPRIVILEGED, PRIVILEGED), gpu_count: int = 0) -> None:
        """Start a new host and the given containers, after removing the remains of an earlier lab."""
        self.build()
        self.down()
        try:
            for base, owner in ((self.layout.base, 0), (self.layout.base_shifted, FIRST_HOST_ID)):
                rootfs.refresh_network_files(base, owner)
            network.up(self.layout)
            host.prepare(self.layout)
            if gpu_count:
                gpus.place_on_host(self.layout, gpu_count)
            host.start(self.layout)
            for container in containers:
                self.create(container)
            for container in containers:
                self.wait_ready(container)
        except BaseException:
            self.down()
            raise

    def down(self) -> None:
        """Stop and remove everything except the built root file systems."""
        if not self.layout.state.exists():
            return
        self.stop_containers()
        host.stop(self.layout)
        remove_empty_folders()
        network.down(self.layout)
        for name in ("host", "ct", "lxc", "ssh", "volumes", "pct.log", "pct.delay", "wheels"):
            path = self.layout.state / name
            if path.is_dir():
                rootfs.remove_tree(path)
            else:
                path.unlink(missing_ok=True)

    def purge(self) -> None:
        """Remove the lab including the built root file systems."""
        self.down()
        leftovers.end(leftovers.of_build, self.layout)
        if self.layout.state.exists():
            rootfs.remove_tree(self.layout.state)

    def stop_containers(self) -> None:
        """Kill every container of this lab."""
        if not self.layout.lxc.exists() or not shutil.which("lxc-stop"):
            return
        for folder in self.layout.lxc.iterdir():
            if folder.is_dir():
                run("lxc-stop", "-P", self.layout.lxc, "-n", folder.name, "-k", check=False, timeout=60)

    # ---- containers ----------------------------------------------------------------------------------------

    def create(self, container: int, *, start: bool = True) -> None:
        """Create a container through pct, as an operator does."""
        arguments = ["create", str(container), TEMPLATE, "--rootfs", "local:8", "--hostname", f"ct{container}",
                     "--cores", "2", "--memory", "4096", "--features", "nesting=1",
                     "--unprivileged", "1" if container == UNPRIVILEGED else "0",
                     "--net0", f"name=eth0,bridge={BRIDGE},ip={address(container)}/24,gw={NETWORK}.1"]
        wheels = os.environ.get("PIP_FIND_LINKS", "")
        if wheels.startswith("/") and Path(wheels).is_dir():
            arguments += ["--mp9", f"{wheels},mp={wheels},ro=1"]
        self.pct(*arguments)
        if container == NODE:
            self.make_node(container)
        if start:
            self.pct("start", str(container))

    def make_node(self, container: int) -> None:
        """Add an sshd that accepts the lab's key to a container, before its first start."""
        upper = self.layout.state / "ct" / str(container) / "upper"
        for name in ("root/.ssh", "etc/ssh", "etc/systemd/system/multi-user.target.wants"):
            (upper / name).mkdir(parents=True, exist_ok=True)
        (upper / "root").chmod(0o700)
        shutil.copy2(self.layout.ssh / "authorized_keys", upper / "root/.ssh/authorized_keys")
        shutil.copy2(self.layout.ssh / "host_ed25519", upper / "etc/ssh/ssh_host_ed25519_key")
        unit = upper / "etc/systemd/system/lab-ssh.service"
        unit.write_text(NODE_UNIT, encoding="utf-8")
        (upper / "etc/systemd/system/multi-user.target.wants/lab-ssh.service").symlink_to(f"../{unit.name}")

    def wait_ready(self, container: int, seconds: float = 60) -> None:
        """Wait until systemd of a container has finished starting."""
        end = time.monotonic() + seconds
        state = ""
        while time.monotonic() < end:
            state = self.inside(container, "systemctl", "is-system-running", check=False).stdout.strip()
            if state in ("running", "degraded"):
                return
            time.sleep(0.2)
        raise LabError(f"container {container} did not start in {seconds} s: systemd reports {state!r}")

    def inside(
        self, container: int, *command: str, check: bool = True, stdin: str | None = None
    ) -> subprocess.CompletedProcess[str]:
        """Run a command in a container without pct, so that tests can check it from outside."""
        return run("lxc-attach", "-P", self.layout.lxc, "-n", str(container), "--clear-env", "--",
                   "/usr/bin/env", "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", *command,
                   check=check, stdin=stdin)

    # ---- the host ------------------------------------------------------------------------------------------

    def pct(self, *arguments: str, check: bool = True) -> subprocess.CompletedProcess[str]:
        """Run pct on the lab's host."""
        return host.run_on_host(self.layout, "/usr/sbin/pct", *arguments, check=check)

    def set_delay(self, seconds: float) -> None:
        """Delay the start of each pct call."""
        self.layout.pct_delay.write_text(str(seconds), encoding="ascii")

    def set_host_environment(self, variables: dict[str, str]) -> None:
        """Export variables in every ssh session of the host's root."""
        lines = "".join(f"{name}='{value}'\n" for name, value in variables.items())
        (self.layout.host / "root/.lab_environment").write_text(lines, encoding="utf-8")

    def pct_calls(self) -> list[list[str]]:
        """Return the arguments of every pct call so far."""
        if not self.layout.pct_log.exists():
            return []
        return [json.loads(line)["argv"] for line in self.layout.pct_log.read_text(encoding="utf-8").splitlines()]

    def logins(self) -> int:
        """Return the number of ssh logins that the host has accepted."""
        return self.layout.sshd_log.read_text(encoding="utf-8", errors="replace").count("Accepted publickey")


def remove_empty_folders() -> None:
    """Remove folders that remain after the last container: empty control groups, and the folder of pct's locks."""
    for folder in (*Path("/sys/fs/cgroup").glob("**/lxc.pivot"), Path("/run/lock/lxc")):
        with contextlib.suppress(OSError):  # in use, or absent
            folder.rmdir()


def refuse_wrong_machine() -> None:
    """Refuse to run without root, or on a Proxmox host."""
    if os.geteuid() != 0:
        raise LabError("the lab needs root: it creates namespaces, a bridge and containers")
    if Path("/etc/pve").exists():
        raise LabError("this machine is a Proxmox host (/etc/pve exists); run the lab elsewhere")
