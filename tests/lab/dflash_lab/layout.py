"""Paths and addresses of the lab."""
from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

TOP = Path(__file__).resolve().parents[1]
FILES = TOP / "files"
DEFAULT_STATE = Path("/var/lib/dflash-lab")
BRIDGE = "dflab0"
NETWORK = "10.213.7"
NFT_TABLE = "dflash_lab"
FIRST_HOST_ID = 100000
TEMPLATE = "local:vztmpl/debian-12-lab_12-1_amd64.tar.zst"
UNPRIVILEGED, PRIVILEGED, NODE = 200, 201, 202


@dataclass(frozen=True, kw_only=True)
class Layout:
    """Paths below one state folder."""

    state: Path = DEFAULT_STATE
    port: int = 22022

    @property
    def base(self) -> Path:
        """Root file system built by debootstrap, with unshifted owners."""
        return self.state / "base"

    @property
    def base_shifted(self) -> Path:
        """The same root file system with shifted owners, for unprivileged containers."""
        return self.state / "base-shifted"

    @property
    def host(self) -> Path:
        """Files that make this machine look like a Proxmox host in the lab's mount namespace."""
        return self.state / "host"

    @property
    def conf(self) -> Path:
        """Folder /etc/pve/lxc of the lab's host."""
        return self.host / "etc" / "pve" / "lxc"

    @property
    def lxc(self) -> Path:
        """Folder of the LXC containers, set in /etc/lxc/lxc.conf of the lab's host."""
        return self.state / "lxc"

    @property
    def ssh(self) -> Path:
        """Keys, known_hosts, sshd's configuration and its log."""
        return self.state / "ssh"

    @property
    def key(self) -> Path:
        """Private key for the logins root and `operator` on the lab's host."""
        return self.ssh / "id_ed25519"

    @property
    def known_hosts(self) -> Path:
        """Host keys of the lab's host and of the plain ssh node."""
        return self.ssh / "known_hosts"

    @property
    def sshd_log(self) -> Path:
        """Log of sshd, with one line for each login."""
        return self.ssh / "sshd.log"

    @property
    def pct_log(self) -> Path:
        """One JSON line for each call of pct."""
        return self.state / "pct.log"

    @property
    def pct_delay(self) -> Path:
        """File with the delay of each pct call in seconds; absent means none."""
        return self.state / "pct.delay"


def address(container: int) -> str:
    """Return the address of a container."""
    return f"{NETWORK}.{container % 254}"


def layout_from_environment() -> Layout:
    """Return the layout from DFLASH_LAB_STATE and DFLASH_LAB_PORT, or the default."""
    return Layout(
        state=Path(os.environ.get("DFLASH_LAB_STATE", str(DEFAULT_STATE))),
        port=int(os.environ.get("DFLASH_LAB_PORT", "22022")),
    )
