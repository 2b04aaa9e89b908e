"""The stand-in Proxmox host: a mount namespace with its own /etc/pve, pct, devices and sshd."""
from __future__ import annotations

import json
import shutil
import socket
import subprocess
import time
from pathlib import Path

from . import leftovers, network
from .layout import FILES, FIRST_HOST_ID, TEMPLATE, Layout, address
from .shell import LabError, run

OPERATOR = "operator"
SSHD = """\
Port {port}
ListenAddress 127.0.0.1
HostKey {ssh}/host_ed25519
AuthorizedKeysFile {ssh}/authorized_keys
PidFile {ssh}/sshd.pid
PermitRootLogin prohibit-password
PasswordAuthentication no
KbdInteractiveAuthentication no
StrictModes no
UsePAM no
PrintMotd no
LogLevel VERBOSE
Subsystem sftp internal-sftp
"""


def prepare(layout: Layout) -> None:
    """Write all files of the namespace without starting anything."""
    for folder in (layout.conf, layout.lxc, layout.ssh, layout.host / "usr/sbin", layout.host / "root"):
        folder.mkdir(parents=True, exist_ok=True)
    layout.host.joinpath("root").chmod(0o700)
    make_keys(layout)
    (layout.ssh / "sshd_config").write_text(SSHD.format(port=layout.port, ssh=layout.ssh), encoding="utf-8")
    settings = {"state": str(layout.state), "template": TEMPLATE, "mtu": network.default_mtu()}
    (layout.host / "etc/pve/dflash-lab.json").write_text(json.dumps(settings) + "\n", encoding="utf-8")
    lxc_conf = layout.host / "etc/lxc/lxc.conf"
    lxc_conf.parent.mkdir(exist_ok=True)
    lxc_conf.write_text(f"lxc.lxcpath = {layout.lxc}\n", encoding="utf-8")
    shutil.copy2(FILES / "pct", layout.host / "usr/sbin/pct")
    shutil.copytree(FILES / "pct_stand_in", layout.host / "etc/dflash-lab/pct_stand_in", dirs_exist_ok=True)
    version = layout.host / "usr/sbin/pveversion"
    version.write_text("#!/bin/sh\necho 'pve-manager/8.2.4/faa83925c9641325 (running kernel: 6.8.8-2-pve)'\n",
                       encoding="utf-8")
    version.chmod(0o755)
    add_accounts(layout)
    # Debian's bash also reads this file for `ssh host command`, so these variables reach every login
    (layout.host / "root/.bashrc").write_text(
        "if [ -r ~/.lab_environment ]; then set -a; . ~/.lab_environment; set +a; fi\n", encoding="utf-8"
    )


def make_keys(layout: Layout) -> None:
    """Create the host key, the client key, authorized_keys and known_hosts once."""
    for name in ("host_ed25519", "id_ed25519"):
        if not (layout.ssh / name).exists():
            run("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "dflash-lab", "-f", layout.ssh / name)
    shutil.copy2(layout.ssh / "id_ed25519.pub", layout.ssh / "authorized_keys")
    # also readable for `operator`, because sshd switches to that user before it reads the file
    layout.state.chmod(0o755)
    layout.ssh.chmod(0o755)
    key = (layout.ssh / "host_ed25519.pub").read_text(encoding="utf-8").split()
    names = [f"[127.0.0.1]:{layout.port}", f"[localhost]:{layout.port}", address(202)]
    layout.known_hosts.write_text("".join(f"{name} {key[0]} {key[1]}\n" for name in names), encoding="utf-8")


def add_accounts(layout: Layout) -> None:
    """Add a non-root user with sudo for pct, and subordinate ids for unprivileged containers, to the host."""
    etc = layout.host / "etc"
    for name, line, mode in (
        ("passwd", f"{OPERATOR}:x:2000:2000::/tmp:/bin/sh", 0o644),
        ("group", f"{OPERATOR}:x:2000:", 0o644),
        ("shadow", f"{OPERATOR}:*:19000:0:99999:7:::", 0o640),
    ):
        text = Path("/etc", name).read_text(encoding="utf-8")
        kept = [old for old in text.splitlines() if not old.startswith(f"{OPERATOR}:")]
        (etc / name).write_text("\n".join([*kept, line]) + "\n", encoding="utf-8")
        (etc / name).chmod(mode)
    for name in ("subuid", "subgid"):
        (etc / name).write_text(f"root:{FIRST_HOST_ID}:65536\n", encoding="utf-8")
    allow_sudo(layout, True)


def allow_sudo(layout: Layout, allowed: bool) -> None:
    """Allow or forbid the operator to run pct through sudo without a password."""
    rule = layout.host / "etc/sudoers.d/dflash-lab"
    rule.parent.mkdir(exist_ok=True)
    rule.parent.chmod(0o750)
    rule.unlink(missing_ok=True)
    if allowed:
        rule.write_text(f"{OPERATOR} ALL=(root) NOPASSWD: /usr/sbin/pct, /usr/bin/lxc-attach\n", encoding="utf-8")
        rule.chmod(0o440)


def start(layout: Layout) -> None:
    """Start the namespace with its sshd, and wait until sshd answers."""
    if pid(layout):
        return
    (layout.ssh / "sshd.pid").unlink(missing_ok=True)
    with (layout.ssh / "host.log").open("ab") as log:
        process = subprocess.Popen(
            ["unshare", "--mount", "--propagation", "private", str(FILES / "host_namespace.sh"), str(layout.state)],
            stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True,
        )
    end = time.monotonic() + 30
    while time.monotonic() < end:
        if process.poll() is not None:
            raise LabError(f"the lab's sshd exited at once:\n{(layout.ssh / 'host.log').read_text(errors='replace')}")
        if pid(layout) and port_answers(layout.port):
            return
        time.sleep(0.1)
    raise LabError(f"the lab's sshd does not answer on port {layout.port}")


def port_answers(port: int) -> bool:
    """Return true when a loopback port accepts connections."""
    with socket.socket() as probe:
        probe.settimeout(1)
        return probe.connect_ex(("127.0.0.1", port)) == 0


def pid(layout: Layout) -> int | None:
    """Return the pid of this lab's sshd; None when it is not running."""
    try:
        found = int((layout.ssh / "sshd.pid").read_text(encoding="ascii"))
        command = Path("/proc", str(found), "cmdline").read_bytes()
    except (OSError, ValueError):
        return None
    return found if str(layout.ssh / "sshd_config").encode() in command else None


def stop(layout: Layout) -> None:
    """End the sshd, its logins and their background processes; the namespace ends with its last process."""
    leftovers.end(leftovers.of_host, layout)


def run_on_host(
    layout: Layout, *command: str, check: bool = True, stdin: str | None = None, timeout: float | None = 300
) -> subprocess.CompletedProcess[str]:
    """Run a command as root on the lab's host, without ssh."""
    found = pid(layout)
    if found is None:
        raise LabError("the lab's host is not running; start it with `lab.py up`")
    environment = {"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "HOME": "/root"}
    return run("nsenter", f"--target={found}", "--mount", "--wd=/", "--", *command,
               check=check, stdin=stdin, env=environment, timeout=timeout)
