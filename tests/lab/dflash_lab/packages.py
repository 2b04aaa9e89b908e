"""The Debian packages that the lab needs on the machine that runs it."""
from __future__ import annotations

import shutil
from pathlib import Path

from .shell import LabError, run

# program -> package
NEEDED = {
    "lxc-start": "lxc",
    "lxc-attach": "lxc",
    "newuidmap": "uidmap",
    "debootstrap": "debootstrap",
    "sshd": "openssh-server",
    "ssh": "openssh-client",
    "nft": "nftables",
    "ip": "iproute2",
    "sudo": "sudo",
    "unshare": "util-linux",
}
KEYRING = Path("/usr/share/keyrings/debian-archive-keyring.gpg")
SEARCHED = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


def missing_packages() -> list[str]:
    """Return the packages whose programs, or whose keys, are not here."""
    wanted = {package for program, package in NEEDED.items() if not shutil.which(program, path=SEARCHED)}
    return sorted(wanted | (set() if KEYRING.exists() else {"debian-archive-keyring"}))


def install_packages() -> list[str]:
    """Install what is missing, without recommends and without starting services; return the names."""
    wanted = missing_packages()
    if not wanted:
        return []
    if not shutil.which("apt-get"):
        raise LabError(f"the lab needs {', '.join(wanted)} and can install them only on Debian or Ubuntu")
    quiet = {"DEBIAN_FRONTEND": "noninteractive", "RUNLEVEL": "1"}
    run("apt-get", "-o", "Acquire::Retries=3", "update", "-qq", env=quiet)
    run(
        "apt-get", "-o", "Acquire::Retries=3", "-o", "DPkg::Lock::Timeout=300",
        "install", "-y", "-qq", "--no-install-recommends", *wanted, env=quiet)
    left = missing_packages()
    if left:
        raise LabError(f"still missing after apt-get install: {', '.join(left)}")
    return wanted
